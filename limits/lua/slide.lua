-- slide: functions for take.lua that read and change the stored times of a subject (for example an account)
-- of a rule with sliding windows. scripts.go puts this file after common.lua. The times are packed (one text,
-- 13 digits each) or a Redis list. The kind in the rule's spec (P: packed, L: list) decides the form of the
-- next write. The stored times can have the other form, because a change of the rule's maximum changes only
-- the spec. The functions receive an item (a rule and its subject), a table:
--     rule    key of the rule
--     key     key of the subject
--     spec    the table that read_spec returns
--     packed  one text with the stored times, newest first; nil if the times are stored as a Redis list
--     n       number of stored times
--     inside  list: number of times in each window; check_item in take.lua sets it

-- load_times: reads the stored times of the item (a rule and a subject), whether they are one text or a Redis
-- list. It sets item.packed to the text (nil for a list) and item.n to the number of times.
local function load_times(item)
  local expects_packed = item.spec.kind == 'P'
  local reply = redis.pcall(expects_packed and 'GET' or 'LLEN', item.key)
  -- A reply of the type table is an error: the times are stored in the other form, because the spec of the
  -- rule was changed. So the command for the other form is used.
  if type(reply) == 'table' then
    reply = redis.call(expects_packed and 'LLEN' or 'GET', item.key)
  end
  if type(reply) == 'number' then
    item.n = reply
    item.packed = nil
  else
    item.packed = reply or ''
    item.n = #item.packed / DIGITS
  end
end

-- nth_of_item: returns the n-th newest stored time (ms) of the item (a rule and a subject).
local function nth_of_item(item, n)
  return nth_newest(item.packed, item.key, n)
end

-- count_after: returns how many stored times of the item (a rule and a subject) are later than the time
-- `edge` (ms). The times are sorted, newest first. The oldest time is compared first, because usually all
-- times are later than edge: each counted request deletes older times. Otherwise a binary search is used.
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

-- push_times: adds n entries with the time `now` at the head of the Redis list `key`. It adds at most 1000
-- entries per command, because the number of values that Lua's unpack can return is limited.
local function push_times(key, now, n)
  local texts = {}
  for i = 1, math.min(n, 1000) do
    texts[i] = text(now)
  end
  for left = n, 1, -1000 do
    redis.call('LPUSH', key, unpack(texts, 1, math.min(left, 1000)))
  end
end

-- keep_newest: deletes all stored times of the item (a rule and a subject) except the newest n. If the form
-- of the times (text or list) differs from the spec of the rule, it converts them. It writes a list to Redis.
-- It does not write a text, but only sets item.packed, because add_times writes the text anyway.
local function keep_newest(item, n)
  local s = item.spec
  local key = item.key
  local packed = item.packed and string.sub(item.packed, 1, DIGITS * n)
  if s.kind == 'P' then
    if not packed then
      local words = {}
      for i, t in ipairs(n > 0 and redis.call('LRANGE', key, 0, text(n - 1)) or {}) do
        words[i] = packed_time(tonumber(t))
      end
      packed = table.concat(words)
    end
    item.packed = packed
  elseif packed then
    redis.call('DEL', key)
    for i = 1, n do
      redis.call('RPUSH', key, text(nth_newest(packed, key, i)))
    end
    item.packed = nil
  elseif n == 0 then
    redis.call('DEL', key)
  elseif n < item.n then
    redis.call('LTRIM', key, 0, text(n - 1))
  end
  item.n = n
end

-- add_times: adds n entries with the time `now` to the stored times of the item (a rule and a subject), and
-- renews the TTL of the key of the subject. keep_newest must have run before.
local function add_times(item, now, n)
  local s = item.spec
  local key = item.key
  if s.kind == 'P' then
    item.packed = string.rep(packed_time(now), n) .. item.packed
    redis.call('SET', key, item.packed, 'PX', text(s.longest))
  else
    push_times(key, now, n)
    redis.call('PEXPIRE', key, text(s.longest))
  end
  item.n = item.n + n
end

-- fix_future_times: replaces each stored time that is later than `now` by `now`. Such times exist if the
-- clock of Redis was set back. They would block the subject until the clock reaches them.
local function fix_future_times(item, now)
  if item.n == 0 or nth_of_item(item, 1) <= now then
    return
  end
  local future_count = count_after(item, now)
  if item.packed then
    item.packed = string.rep(packed_time(now), future_count)
      .. string.sub(item.packed, DIGITS * future_count + 1)
    return redis.call('SET', item.key, item.packed, 'PX', text(item.spec.longest))
  end
  redis.call('LTRIM', item.key, text(future_count), -1)
  push_times(item.key, now, future_count)
  redis.call('PEXPIRE', item.key, text(item.spec.longest))
end

-- count_sliding: counts the cost n of a request at the time `now`: it adds n entries to the stored times of
-- the item (a rule and a subject). It also deletes the times that are outside all windows, and adds n to each
-- number in item.inside (the number of times in each window).
local function count_sliding(item, now, n)
  local kept_count = 0
  local s = item.spec
  for i = 1, s.windows do
    kept_count = math.max(kept_count, item.inside[i])
  end
  keep_newest(item, kept_count)
  add_times(item, now, n)
  for i = 1, s.windows do
    item.inside[i] = item.inside[i] + n
  end
end

-- remove_times: gives back a part n of a cost that was counted at the time `counted_at` (ms): it deletes at
-- most n entries with this time from the stored times of the item (a rule and a subject).
local function remove_times(item, counted_at, n)
  load_times(item)
  if not item.packed then
    return redis.call('LREM', item.key, text(n), text(counted_at))
  end
  local words = {}
  local removed = packed_time(counted_at)
  for i = 1, item.n do
    local stored_time = string.sub(item.packed, DIGITS * i - DIGITS + 1, DIGITS * i)
    if stored_time == removed and n > 0 then
      n = n - 1
    else
      words[#words + 1] = stored_time
    end
  end
  if #words == 0 then
    return redis.call('DEL', item.key)
  end
  redis.call('SET', item.key, table.concat(words), 'PX', text(item.spec.longest))
end
