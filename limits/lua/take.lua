-- take: evaluates takes. A take asks the rules of a limit set to count a cost (a number).
-- In mode T, the script counts the cost of each allowed take. In mode R, it gives back parts of costs that
-- were counted before. An item is a rule and the subject that the rule counts, for example one account.
--
-- KEYS     as in takes.lua
-- MODE     a constant that scripts.go puts in front of the script. T: take. P: write nothing. R: give back
-- ARGV[1]  epoch of Redis: the name of a period in which Redis lost no data
-- ARGV[2...]  for each take:
--     cost    in the modes T and P: the cost; in mode R: how much of the cost is to be given back in total
--     n       number of keys of the take: 2 for each item, and 1 more if the take has an id
--     specs   for each item: the spec of its rule (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then in the modes T and P for each take:
--     verdict  REFUSED, ALLOWED, REPEATED or OTHER_COST (takes.lua)
--     since    the latest time (ms) at which one of the rules began to count; 0 if each rule has counted for
--              its whole window
--     and for each item:
--     window   index, from 0, of the window in which the least cost is still allowed
--     used     sum of the costs that are counted in this window
--     reset    ms until a part of `used` expires; 0 if nothing will expire
--     wait     ms until the item allows the cost; 0 if it allows the cost now
--   In mode R, one number follows for each take: how much of its cost has been given back in total.
--   If the list contains only the time, the script did nothing, because the spec of a calendar rule lacks
--   a period that the script needs.
--
-- Invariants:
--   The script counts a cost only if all items of the take allow it.
--   Only one cost is counted under an id, and only once. If a second cost were counted under the same id,
--   the script could not give back exact parts of the two costs.

local now = clock()

-- read_item: returns the item (a table of slide.lua) whose rule has the key KEYS[key] and this spec. For a
-- calendar rule it also sets item.from and item.to, the start and end (ms) of the current period. The second
-- result is false or nil if the spec of a calendar rule lacks a needed period.
local function read_item(key, spec)
  check(KEYS[key + 1] and spec, 'item')
  local item = { rule = KEYS[key], key = KEYS[key + 1], spec = read_spec(spec) }
  if item.spec.kind == 'C' then
    item.from, item.to = period_containing(item.spec, now)
    -- Mode R also needs the previous period. The spec contains it only if the current period is the second
    -- period of the spec.
    return item, item.from and (MODE ~= 'R' or item.from == item.spec.starts[2])
  end
  return item, true
end

-- read_takings: parses all arguments, before the first write. Returns a list of takes, tables with the
-- fields cost, items and id, or nil if the spec of a calendar rule lacks a needed period.
local function read_takings()
  local takings = {}
  local i = 2
  local key = 1
  while ARGV[i] do
    local t = { cost = tonumber(ARGV[i]), items = {} }
    local n = tonumber(ARGV[i + 1])
    check(n and t.cost, 'taking')
    local has_id = n % 2 == 1
    n = math.floor(n / 2)
    for k = 1, n do
      local has_periods
      t.items[k], has_periods = read_item(key, ARGV[i + 1 + k])
      if not has_periods then
        return nil
      end
      key = key + 2
    end
    if has_id then
      t.id = KEYS[key]
      key = key + 1
      check(t.id, 'id')
    end
    takings[#takings + 1] = t
    i = i + 2 + n
  end
  return takings
end

-- read_id: looks for an earlier allowed take with the same id as the take t. Returns the time (ms) of the
-- earlier take, its cost, and how much of the cost was given back. If no take with this id was allowed
-- within the last REMEMBER ms, it returns nil.
local function read_id(t)
  local value = t.id and redis.call('GET', t.id)
  if not value then
    return nil
  end
  local taken_at, cost, returned = string.match(value, '^(%d+)|(%d+)|(%d+)$')
  taken_at = tonumber(taken_at)
  if now - taken_at >= REMEMBER then
    return nil
  end
  return taken_at, tonumber(cost), tonumber(returned)
end

-- write_id: records an allowed take in the key of its id: when it was counted (ms), its cost, and the part
-- that was given back. The key expires REMEMBER ms after taken_at.
local function write_id(t, taken_at, cost, returned)
  redis.call(
    'SET',
    t.id,
    text(taken_at) .. '|' .. text(cost) .. '|' .. text(returned),
    'PX',
    text(math.min(taken_at + REMEMBER - now, REMEMBER))
  )
end

-- read_counts_since: reads `rule`, the Redis key of a rule. Returns the time (ms) at which the rule began to
-- count in this epoch, and whether the key must be written again. If the rule has not begun, the time is nil.
-- A rule that counts starts of tasks (only in mode P) has no such time: if it is known (keys.lua), the
-- results are 0 and false.
local function read_counts_since(rule)
  local state = redis.call('GET', rule)
  if state and string.sub(state, 1, 6) == 'known|' then
    return 0, false
  end
  if not state or string.sub(state, 2 * DIGITS + 1) ~= ARGV[1] then
    return nil, true
  end
  return tonumber(string.sub(state, 1, DIGITS)), now > tonumber(string.sub(state, DIGITS + 1, 2 * DIGITS))
end

-- load_rule: sets item.since, the time (ms) at which the rule of the item began to count. If the rule begins with
-- this call, the time is now. In mode T, load_rule writes the key of the rule if that is needed.
local function load_rule(item)
  local since, needs_write = read_counts_since(item.rule)
  item.since = math.min(since or now, now)
  if MODE == 'T' and needs_write then
    redis.call(
      'SET',
      item.rule,
      text(item.since) .. text(now + RENEW) .. ARGV[1],
      'PX',
      text(item.spec.longest + OUTLIVE)
    )
  end
end

-- load_item: reads the rule and the subject of the item from Redis. It sets these fields:
--  since            time (ms) at which the rule began to count
--  has_full_window  true if the rule has counted for its whole window
--  n                for sliding windows: number of stored times (slide.lua)
--  from, to, used   for F and C: start and end (ms) of the window or period, and the sum of its costs
local function load_item(item)
  load_rule(item)
  local s = item.spec
  if s.windows then
    item.n = redis.call('LLEN', item.key)
    if MODE == 'T' then
      fix_future_times(item, now)
    end
    item.has_full_window = now - item.since >= s.longest
    return
  end
  local window_start, n = read_count(item.key)
  if s.kind == 'F' then
    -- If the clock of Redis was set back, window_start can be in the future. This would block the subject, so
    -- the window begins now.
    window_start = window_start and math.min(window_start, now)
    if not window_start or now >= window_start + s.longest then
      window_start = now
      n = 0
    end
    item.from = window_start
    item.to = window_start + s.longest
    item.used = n
    item.has_full_window = now - item.since >= s.longest
    return
  end
  item.used = window_start and window_start >= item.from and n or 0
  item.has_full_window = item.since <= item.from
end

-- check_item: returns the time (ms) until the rule of the item allows the cost, and stores this time in
-- item.wait. The time is 0 if the rule allows the cost now. For sliding windows, check_item also sets
-- item.inside, the number of stored times in each window.
local function check_item(item, cost)
  if item.used then
    item.wait = item.used + cost > item.spec.most and item.to - now or 0
    return item.wait
  end
  local s = item.spec
  item.wait = 0
  item.inside = {}
  for i = 1, s.windows do
    item.inside[i] = count_after(item, now - s.per[i])
    if item.inside[i] + cost > s.max[i] then
      item.wait = math.max(item.wait, math.min(nth_of_item(item, s.max[i] - cost + 1), now) + s.per[i] - now)
    end
  end
  return item.wait
end

-- count_cost: adds the cost of an allowed take to the count of the item's subject.
local function count_cost(item, cost)
  if item.used then
    item.used = item.used + cost
    return write_count(item.spec, item.key, item.from, item.used, now)
  end
  count_sliding(item, now, cost)
end

-- append_usage: appends the numbers window, used, reset and wait of the item to the reply (see the head of this
-- file). If the rule has several sliding windows, the numbers describe the window that allows the least further
-- cost. If two windows allow equally little, they describe the window with the later reset.
local function append_usage(reply, item)
  local s = item.spec
  local window = 1
  local used = item.used
  local reset = 0
  if used then
    if used > 0 or s.kind == 'C' then
      reset = item.to - now
    end
  else
    local least_left
    for i = 1, s.windows do
      local n = item.inside[i]
      local left = s.max[i] - n
      local ends = n > 0 and math.min(nth_of_item(item, n), now) + s.per[i] - now or 0
      if not least_left or left < least_left or left == least_left and ends > reset then
        window = i
        used = n
        reset = ends
        least_left = left
      end
    end
  end
  local n = #reply
  reply[n + 1] = window - 1
  reply[n + 2] = used
  reply[n + 3] = reset
  reply[n + 4] = item.wait
end

-- do_take: evaluates the take t and appends the verdict and the usage of each item to the reply. In mode T
-- it counts the cost if the verdict is ALLOWED.
local function do_take(reply, t)
  local taken_at, cost, returned = read_id(t)
  local verdict = ALLOWED
  local since = 0
  -- If taken_at is set, a take with the same id was counted before. If its whole cost was given back, the id
  -- can be used again.
  if taken_at and returned < cost then
    verdict = cost == t.cost and REPEATED or OTHER_COST
  end
  for _, item in ipairs(t.items) do
    load_item(item)
    if not item.has_full_window then
      since = math.max(since, item.since)
    end
    if check_item(item, t.cost) > 0 and verdict == ALLOWED then
      verdict = REFUSED
    end
    if verdict == REPEATED then
      item.wait = 0
    end
  end
  if MODE == 'T' and verdict == ALLOWED then
    for _, item in ipairs(t.items) do
      count_cost(item, t.cost)
    end
    if t.id then
      write_id(t, now, t.cost, 0)
    end
  end
  reply[#reply + 1], reply[#reply + 2] = verdict, since
  for _, item in ipairs(t.items) do
    append_usage(reply, item)
  end
end

-- uncount: subtracts n from the count of the item's subject. n is a part of a cost that was counted at the time
-- taken_at (ms). If the window or period of this time has ended, uncount changes nothing.
local function uncount(item, taken_at, n)
  local s = item.spec
  if s.windows then
    return redis.call('LREM', item.key, text(n), text(taken_at))
  end
  local from, used = read_count(item.key)
  if not from then
    return
  end
  if s.kind == 'F' then
    if taken_at < from or taken_at >= from + s.longest then
      return
    end
  -- This branch is for a calendar rule. If its count is of another period, or began after taken_at, the count
  -- does not include the cost, so nothing is subtracted.
  elseif from ~= period_containing(s, taken_at) or (read_counts_since(item.rule) or 0) > taken_at then
    return
  end
  if used > n then
    return write_count(s, item.key, from, used - n, now)
  end
  redis.call('DEL', item.key)
end

-- give_back: gives back a part of the cost that was counted under the id of the take t. t.cost is the total to
-- give back, so a repeated call gives back nothing more. give_back appends to the reply how much of the cost
-- has been given back in total.
local function give_back(reply, t)
  local taken_at, cost, returned = read_id(t)
  local total = taken_at and math.min(t.cost, cost) or 0
  if taken_at and total > returned then
    for _, item in ipairs(t.items) do
      uncount(item, taken_at, total - returned)
    end
    write_id(t, taken_at, cost, total)
  end
  reply[#reply + 1] = math.max(total, returned or 0)
end

local takings = read_takings()
local reply = { now }
for _, t in ipairs(takings or {}) do
  if MODE == 'R' then
    give_back(reply, t)
  else
    do_take(reply, t)
  end
end
return reply
