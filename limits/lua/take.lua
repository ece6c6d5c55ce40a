-- take: reports whether takings are allowed now, and counts the cost of each allowed taking. In
-- mode R it gives back parts of the cost of earlier takings.
--
-- KEYS     as in takes.lua
-- MODE     T: take. P: only report, write nothing. R: give back. scripts.go defines MODE as a constant
-- ARGV[1]  epoch of Redis
-- ARGV[2...]  for each taking:
--     cost    mode T and P: the cost; mode R: how much of the cost is to be given back in total
--     n       number of keys: 2 for each item, and 1 if the taking has an id
--     specs   for each item: the spec of its rule (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then for each taking in modes T and P:
--     verdict  REFUSED, ALLOWED, REPEATED or OTHER_COST (takes.lua)
--     since    time (ms) since which all rules count; 0 if all have counted for their whole windows
--     and for each item:
--     window   index of the window with the least left, from 0
--     used     how much of its maximum is used
--     reset    ms until a part of `used` ends
--     wait     ms until the item allows the cost; 0 if it does now
--   and for each taking in mode R: how much of its cost has been given back in total.
--   In modes T and P the number of elements must be odd: takes.go takes a reply with an even number
--   of elements for a reply of quick_take.lua.
--   The time alone means that nothing was done: the spec of a calendar contains no period for this
--   time.
--
-- Invariants:
--   A cost is counted only if all items of the taking allow the cost.
--   An id is counted once, and with one cost: the cost of a second taking could not be given back
--   exactly.

local now = clock()

-- read_item: reads the item whose rule is KEYS[key]. Returns the item (slide.lua), and true if the
-- spec contains the needed periods: the current period and, in mode R, also the previous period.
-- For a calendar it sets item.from and item.to, the current period.
local function read_item(key, spec)
  check(KEYS[key + 1] and spec, 'item')
  local item = { rule = KEYS[key], key = KEYS[key + 1], spec = read_spec(spec) }
  if item.spec.kind == 'C' then
    item.from, item.to = period_containing(item.spec, now)
    -- If the current period is not the second of the spec, the period before is missing.
    return item, item.from and (MODE ~= 'R' or item.from == item.spec.starts[2])
  end
  return item, true
end

-- read_takings: reads all arguments before anything is written. Returns a list of takings (cost,
-- items, id), or nil if the spec of a calendar does not contain the needed periods.
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

-- read_id: reads the key of the id of taking t. Returns the time, the cost and the returned part of
-- the taking that was allowed under this id. Returns nil if t has no id, or the id is not known any
-- more.
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

-- write_id: writes the key of the id of taking t, until REMEMBER ms after `taken_at`.
local function write_id(t, taken_at, cost, returned)
  redis.call(
    'SET',
    t.id,
    text(taken_at) .. '|' .. text(cost) .. '|' .. text(returned),
    'PX',
    text(math.min(taken_at + REMEMBER - now, REMEMBER))
  )
end

-- read_counts_since: reads since when a rule counts. Returns a time (ms), and true if the key of the
-- rule must be written again. Returns nil and true if the rule begins to count now. A known rule of
-- starts (keys.lua), whose usage is read in mode P, counts all starts: the result is 0 and false.
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

-- load_rule: sets item.since, the time (ms) since which the rule counts. In mode T it writes the
-- key of the rule if necessary.
local function load_rule(item)
  local since, needs_write = read_counts_since(item.rule)
  item.since = math.min(since or now, now)
  if MODE == 'T' and needs_write then
    redis.call(
      'SET',
      item.rule,
      packed_time(item.since) .. packed_time(now + RENEW) .. ARGV[1],
      'PX',
      text(item.spec.longest + OUTLIVE)
    )
  end
end

-- load_item: reads the rule and the subject of the item before check_item evaluates the item. It
-- sets:
--   since            time (ms) since which the rule counts
--   has_full_window  true if the rule has counted for the whole window
--   Only for sliding windows: packed, n (slide.lua)
--   Only for F and C:
--   from, to  start and end of the window in ms
--   used      number of counted units in the window
local function load_item(item)
  load_rule(item)
  local s = item.spec
  if s.windows then
    load_times(item)
    if MODE == 'T' then
      fix_future_times(item, now)
    end
    item.has_full_window = now - item.since >= s.longest
    return
  end
  local window_start, n = read_count(item.key)
  if s.kind == 'F' then
    -- A window that begins in the future was written before the clock was set back.
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

-- check_item: sets item.wait, the time (ms) until the item allows the cost; 0 means that it does now.
-- For sliding windows it also sets item.inside. Returns item.wait.
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

-- count_cost: adds the cost to the subject of the item.
local function count_cost(item, cost)
  if item.used then
    item.used = item.used + cost
    return write_count(item.spec, item.key, item.from, item.used, now)
  end
  count_sliding(item, now, cost)
end

-- append_usage: appends the usage of the item to the reply: window, used, reset, wait. For sliding
-- windows it is the window with the least left; of equal windows, the one with the later reset.
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

-- do_take: evaluates taking t and appends the result to the reply. In mode T it counts the cost if
-- all items allow the cost.
local function do_take(reply, t)
  local taken_at, cost, returned = read_id(t)
  local verdict = ALLOWED
  local since = 0
  -- The id was counted before, and not all of its cost was given back.
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

-- uncount: subtracts n from the count of the subject at the time `taken_at`.
local function uncount(item, taken_at, n)
  local s = item.spec
  if s.windows then
    return remove_times(item, taken_at, n)
  end
  local from, used = read_count(item.key)
  if not from then
    return
  end
  if s.kind == 'F' then
    if taken_at < from or taken_at >= from + s.longest then
      return
    end
  -- The subject has another period, or the rule began to count after the taking.
  elseif from ~= period_containing(s, taken_at) or (read_counts_since(item.rule) or 0) > taken_at then
    return
  end
  if used > n then
    return write_count(s, item.key, from, used - n, now)
  end
  redis.call('DEL', item.key)
end

-- give_back: gives back t.cost in total of the taking with the id of t. A call that is sent again
-- gives back nothing more. It appends the amount given back in total to the reply; the amount is 0
-- if the id is not known.
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
