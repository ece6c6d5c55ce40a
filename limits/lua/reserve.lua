-- reserve: reports whether starts may happen now. In mode R it also reserves the starts that may.
--
-- KEYS     as in keys.lua
-- MODE     R: reserve. P: only report, write nothing. scripts.go defines MODE as a constant
-- ARGV     for each check:
--     lease           id of the start
--     group           the group of the check
--     n               number of items
--     spec, n times   the specs of the rules (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then for each check:
--     status  UNKNOWN, LIMITED, PASSED, UNSETTLED or NO_PERIOD (keys.lua)
--     m       number of entries: one for each item that refuses if the status is LIMITED, one if the
--             status is UNKNOWN or NO_PERIOD, else 0
--     and for each entry:
--     item    index of the item, from 0
--     window  index of the window in its rule, from 0
--     wait    ms until the window allows a start
--     ago     ms since the oldest start that blocks the window
--     soft    1 if only reservations block the window; else 0
--
-- Invariants:
--   If an item of a check refuses, nothing is reserved for the check.
--   Checks of one group are alternatives: a reservation does not count for checks of its own group.
--   A lease that was reserved or counted before passes again (MODE R).
--   No check passes while one of its rules is unknown, or while any reservation of the scope is
--   overdue: first somebody must find out whether the overdue start happened.

-- Read all arguments before the first write.
local checks = {}
local next = 1
local key = FIRST + 1
while ARGV[next] do
  local c = { lease = ARGV[next], group = ARGV[next + 1], items = {} }
  local n = tonumber(ARGV[next + 2])
  check(n and c.lease ~= '', 'check')
  for i = 1, n do
    local spec = ARGV[next + 2 + i]
    local subject = KEYS[key + 1]
    check(subject and spec, 'item')
    c.items[i] = { rule = KEYS[key], key = subject, spec = read_spec(spec) }
    key = key + 2
  end
  checks[#checks + 1] = c
  next = next + 3 + n
end

local now, at = clock()
local reply = { now }
-- Number of open reservations in the scope.
local open = redis.call('ZCARD', OPEN)
-- true if a reservation is open for longer than SETTLE.
local overdue = open > 0 and redis.call('ZCOUNT', OPEN, '-inf', text(now - SETTLE)) > 0

-- doubt: deletes the state of the rule, so that the rule is filled again. It is called if a subject
-- has a time in the future: the clock was set back, and the subject would block starts until the
-- clock reaches that time. In mode P nothing is deleted. Returns UNKNOWN.
local function doubt(item)
  if MODE ~= 'P' then
    redis.call('DEL', item.rule)
  end
  return UNKNOWN
end

-- shut: returns the entry for a window (from 1) that counted starts block.
--
-- The functions slide, tally and judge evaluate an item. They return nil if the item allows a start, a
-- status (a number), or the entry (a table) for the window that blocks the start.
local function shut(window, wait, ago)
  return { window = window - 1, wait = wait, ago = ago, soft = 0 }
end

-- shut_by_reservations: returns the entry for a window (from 1) that only reservations block.
local function shut_by_reservations(window)
  return { window = window - 1, wait = 0, ago = 0, soft = 1 }
end

-- slide: evaluates an item with sliding windows. If several windows block, the entry is for the
-- window with the longest wait; a window that counted starts block precedes a window that only
-- reservations block. pending lists the times of the reservations of other groups.
local function slide(item, pending)
  local s = item.spec
  local worst = nil
  local packed = packed_of(item.spec, item.key)
  for i = 1, s.windows do
    local wait, ago, soft = window_shuts(packed, item.key, s.max[i], s.per[i], pending, now)
    if not wait and ago then
      return doubt(item)
    end
    if wait and (not worst or soft == 0 and (worst.soft == 1 or wait > worst.wait)) then
      worst = { window = i - 1, wait = wait, ago = ago, soft = soft }
    end
  end
  return worst
end

-- tally: evaluates a fixed window or a calendar period from `from` to `to` (ms) with n starts.
-- pending lists the times of the reservations of other groups.
local function tally(s, from, to, n, pending)
  if n >= s.most then
    return shut(1, to - now, now - from)
  end
  if n + #pending >= s.most then
    return shut_by_reservations(1)
  end
end

-- judge: evaluates an item for a check of the group.
local function judge(item, group)
  local s = item.spec
  if state_of(item.rule) ~= 'known' then
    return UNKNOWN
  end
  local pending = open > 0 and others(item.key, group) or {}
  if s.windows then
    return slide(item, pending)
  end
  local since, n = read_count(item.key)
  if since and since > now + AHEAD then
    return doubt(item)
  end
  if s.kind == 'F' then
    if not since or now >= since + s.longest then
      since = now
      n = 0
    end
    return tally(s, since, since + s.longest, n, pending)
  end
  local from, to = period(s, now)
  if not from then
    return NO_PERIOD
  end
  return tally(s, from, to, since == from and n or 0, pending)
end

-- answer: appends the status and the entries of a check to the reply.
local function answer(status, entries)
  reply[#reply + 1] = status
  reply[#reply + 1] = #entries
  for _, e in ipairs(entries) do
    for _, n in ipairs({ e.item, e.window, e.wait, e.ago, e.soft }) do
      reply[#reply + 1] = n
    end
  end
end

-- passed_before: reports whether this lease was reserved or counted before, so that a check that is
-- sent again passes again.
local function passed_before(c)
  if open > 0 and redis.call('ZSCORE', OPEN, c.lease) then
    return true
  end
  local first = c.items[1]
  return first and redis.call('ZSCORE', DONE, rule_name(first.key) .. '|' .. c.lease)
end

-- pass: appends PASSED to the reply. In mode R it also reserves all items of the check.
local function pass(c)
  if MODE == 'R' and #c.items > 0 then
    redis.call('ZADD', OPEN, at, c.lease)
    open = open + 1
  end
  for _, item in ipairs(MODE == 'R' and c.items or {}) do
    redis.call('ZADD', PENDING, '0', reservation(item.key, at, c.group, c.lease))
  end
  answer(PASSED, {})
end

-- serve: evaluates a check and appends its result to the reply.
local function serve(c)
  if MODE == 'R' and passed_before(c) then
    return answer(PASSED, {})
  end
  if overdue then
    return answer(UNSETTLED, {})
  end
  local entries = {}
  for i, item in ipairs(c.items) do
    local found = judge(item, c.group)
    if type(found) == 'number' then
      return answer(found, { { item = i - 1, window = 0, wait = 0, ago = 0, soft = 0 } })
    elseif found then
      found.item = i - 1
      entries[#entries + 1] = found
    end
  end
  if #entries == 0 then
    return pass(c)
  end
  answer(LIMITED, entries)
end

for _, c in ipairs(checks) do
  serve(c)
end
return reply
