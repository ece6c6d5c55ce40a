-- take: reports whether takings are allowed now, and counts the cost of each allowed taking. In mode R
-- it gives back parts of the cost of earlier takings.
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
    item.from, item.to = period(item.spec, now)
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
      local found
      t.items[k], found = read_item(key, ARGV[i + 1 + k])
      if not found then
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

-- said: reads the key of the id of taking t. Returns the time, the cost and the returned part of
-- the taking that was allowed under this id. Returns nil if t has no id, or the id is not known any
-- more.
local function said(t)
  local value = t.id and redis.call('GET', t.id)
  if not value then
    return nil
  end
  local when, cost, back = string.match(value, '^(%d+)|(%d+)|(%d+)$')
  when = tonumber(when)
  if now - when >= REMEMBER then
    return nil
  end
  return when, tonumber(cost), tonumber(back)
end

-- remember: writes the key of the id of taking t, until REMEMBER ms after `when`.
local function remember(t, when, cost, back)
  redis.call(
    'SET',
    t.id,
    text(when) .. '|' .. text(cost) .. '|' .. text(back),
    'PX',
    text(math.min(when + REMEMBER - now, REMEMBER))
  )
end

-- counts_since: reads since when a rule counts. Returns a time (ms), and true if the key of the
-- rule must be written again. Returns nil and true if the rule begins to count now. A known rule of
-- starts (keys.lua), whose usage is read in mode P, counts all starts: the result is 0 and false.
local function counts_since(rule)
  local state = redis.call('GET', rule)
  if state and string.sub(state, 1, 6) == 'known|' then
    return 0, false
  end
  if not state or string.sub(state, 2 * DIGITS + 1) ~= ARGV[1] then
    return nil, true
  end
  return tonumber(string.sub(state, 1, DIGITS)), now > tonumber(string.sub(state, DIGITS + 1, 2 * DIGITS))
end

-- know: sets item.since, the time (ms) since which the rule counts. In mode T it writes the key of
-- the rule if necessary.
local function know(item)
  local since, due = counts_since(item.rule)
  item.since = math.min(since or now, now)
  if MODE == 'T' and due then
    redis.call(
      'SET',
      item.rule,
      word(item.since) .. word(now + RENEW) .. ARGV[1],
      'PX',
      text(item.spec.longest + OUTLIVE)
    )
  end
end

-- begin: reads the rule and the subject of the item before judge evaluates the item. It sets:
--   since  time (ms) since which the rule counts
--   whole  true if the rule has counted for the whole window
--   Only for sliding windows: packed, n (slide.lua)
--   Only for F and C:
--   from, to  start and end of the window in ms
--   used      number of counted units in the window
local function begin(item)
  know(item)
  local s = item.spec
  if s.windows then
    load_times(item)
    if MODE == 'T' then
      mend(item, now)
    end
    item.whole = now - item.since >= s.longest
    return
  end
  local since, n = read_count(item.key)
  if s.kind == 'F' then
    -- A window that begins in the future was written before the clock was set back.
    since = since and math.min(since, now)
    if not since or now >= since + s.longest then
      since = now
      n = 0
    end
    item.from = since
    item.to = since + s.longest
    item.used = n
    item.whole = now - item.since >= s.longest
    return
  end
  item.used = since and since >= item.from and n or 0
  item.whole = item.since <= item.from
end

-- judge: sets item.wait, the time (ms) until the item allows the cost; 0 means that it does now.
-- For sliding windows it also sets item.inside. Returns item.wait.
local function judge(item, cost)
  if item.used then
    item.wait = item.used + cost > item.spec.most and item.to - now or 0
    return item.wait
  end
  local s = item.spec
  item.wait = 0
  item.inside = {}
  for i = 1, s.windows do
    item.inside[i] = inside(item, now - s.per[i])
    if item.inside[i] + cost > s.max[i] then
      item.wait = math.max(item.wait, math.min(nth_of(item, s.max[i] - cost + 1), now) + s.per[i] - now)
    end
  end
  return item.wait
end

-- count: adds the cost to the subject of the item.
local function count(item, cost)
  if item.used then
    item.used = item.used + cost
    return write_count(item.spec, item.key, item.from, item.used, now)
  end
  slide(item, now, cost)
end

-- stand: appends the usage of the item to the reply: window, used, reset, wait. For sliding windows
-- it is the window with the least left; of equal windows, the one with the later reset.
local function stand(reply, item)
  local s = item.spec
  local window = 1
  local used = item.used
  local reset = 0
  if used then
    if used > 0 or s.kind == 'C' then
      reset = item.to - now
    end
  else
    local least
    for i = 1, s.windows do
      local n = item.inside[i]
      local left = s.max[i] - n
      local ends = n > 0 and math.min(nth_of(item, n), now) + s.per[i] - now or 0
      if not least or left < least or left == least and ends > reset then
        window = i
        used = n
        reset = ends
        least = left
      end
    end
  end
  local n = #reply
  reply[n + 1] = window - 1
  reply[n + 2] = used
  reply[n + 3] = reset
  reply[n + 4] = item.wait
end

-- take: evaluates taking t and appends the result to the reply. In mode T it counts the cost if all
-- items allow the cost.
local function take(reply, t)
  local when, cost, back = said(t)
  local verdict = ALLOWED
  local since = 0
  -- The id was counted before, and not all of its cost was given back.
  if when and back < cost then
    verdict = cost == t.cost and REPEATED or OTHER_COST
  end
  for _, item in ipairs(t.items) do
    begin(item)
    if not item.whole then
      since = math.max(since, item.since)
    end
    if judge(item, t.cost) > 0 and verdict == ALLOWED then
      verdict = REFUSED
    end
    if verdict == REPEATED then
      item.wait = 0
    end
  end
  if MODE == 'T' and verdict == ALLOWED then
    for _, item in ipairs(t.items) do
      count(item, t.cost)
    end
    if t.id then
      remember(t, now, t.cost, 0)
    end
  end
  reply[#reply + 1], reply[#reply + 2] = verdict, since
  for _, item in ipairs(t.items) do
    stand(reply, item)
  end
end

-- uncount: subtracts n from the count of the subject at the time `when`.
local function uncount(item, when, n)
  local s = item.spec
  if s.windows then
    return unslide(item, when, n)
  end
  local from, used = read_count(item.key)
  if not from then
    return
  end
  if s.kind == 'F' then
    if when < from or when >= from + s.longest then
      return
    end
  -- The subject has another period, or the rule began to count after the taking.
  elseif from ~= period(s, when) or (counts_since(item.rule) or 0) > when then
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
  local when, cost, back = said(t)
  local want = when and math.min(t.cost, cost) or 0
  if when and want > back then
    for _, item in ipairs(t.items) do
      uncount(item, when, want - back)
    end
    remember(t, when, cost, want)
  end
  reply[#reply + 1] = math.max(want, back or 0)
end

local takings = read_takings()
local reply = { now }
for _, t in ipairs(takings or {}) do
  if MODE == 'R' then
    give_back(reply, t)
  else
    take(reply, t)
  end
end
return reply
