-- slide: functions for take.lua that read and change the stored times of a subject (for example an account)
-- of a rule with sliding windows. scripts.go puts this file after common.lua. The functions receive an item
-- (a rule and its subject), a table:
--     rule    key of the rule
--     key     key of the subject: a Redis list of times, newest first
--     spec    the table that read_spec returns
--     n       number of stored times
--     inside  list: number of times in each window; check_item in take.lua sets it

-- Time in ms for which a list outlives the longest window of its rule. Redis 7.0 can delete an expired list
-- while a script runs. Because the list expires so late, it then has only times that are outside all windows.
local LIST_OUTLIVES = 1000

-- nth_of_item: returns the n-th newest stored time (ms) of the item; n is at most item.n. If Redis has deleted
-- the list because it expired during the script, nth_of_item returns 0, a time outside all windows.
local function nth_of_item(item, n)
  return nth_newest(item.key, n) or 0
end

-- count_after: returns how many stored times of the item are later than `edge` (ms). Usually all times are
-- later, so the oldest time is compared first. If the oldest time is not later, a binary search follows.
local function count_after(item, edge)
  local low = 0
  local high = item.n
  if high == 0 or nth_of_item(item, high) > edge then
    return high
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if nth_of_item(item, middle) > edge then
      low = middle
    else
      high = middle
    end
  end
  return low
end

-- add_times: adds the time `now` n times to the stored times of the item, and renews the TTL of the key. One
-- command adds at most 1000 times, because Lua's unpack is limited.
local function add_times(item, now, n)
  local texts = {}
  for i = 1, math.min(n, 1000) do
    texts[i] = text(now)
  end
  for left = n, 1, -1000 do
    redis.call('LPUSH', item.key, unpack(texts, 1, math.min(left, 1000)))
  end
  redis.call('PEXPIRE', item.key, text(item.spec.longest + LIST_OUTLIVES))
end

-- fix_future_times: replaces stored times that are later than `now` by `now`. Such times exist if the clock of
-- Redis was set back. They would block the subject until the clock reaches them.
local function fix_future_times(item, now)
  if item.n == 0 or nth_of_item(item, 1) <= now then
    return
  end
  local future_count = count_after(item, now)
  redis.call('LTRIM', item.key, text(future_count), -1)
  add_times(item, now, future_count)
end

-- count_sliding: counts a cost n at the time `now`. It deletes the stored times that are outside all windows,
-- adds the time `now` n times to the stored times, and adds n to each number in item.inside.
local function count_sliding(item, now, n)
  local kept_count = 0
  for i = 1, item.spec.windows do
    kept_count = math.max(kept_count, item.inside[i])
    item.inside[i] = item.inside[i] + n
  end
  if kept_count == 0 then
    redis.call('DEL', item.key)
  elseif kept_count < item.n then
    redis.call('LTRIM', item.key, 0, text(kept_count - 1))
  end
  add_times(item, now, n)
  item.n = kept_count + n
end
