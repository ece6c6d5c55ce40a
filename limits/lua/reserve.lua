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
--     only_reserved
--             1 if only reservations block the window; else 0
--
-- Invariants:
--   If an item of a check refuses, nothing is reserved for the check.
--   Checks of one group are alternatives: a reservation does not count for checks of its own group.
--   A lease that was reserved or counted before passes again (MODE R).
--   No check passes while one of its rules is unknown, or while any reservation of the scope is
--   overdue: first somebody must find out whether the overdue start happened.

-- Read all arguments before the first write.
local checks = {}
local next_arg = 1
local next_key = FIXED_KEYS + 1
while ARGV[next_arg] do
  local c = { lease = ARGV[next_arg], group = ARGV[next_arg + 1], items = {} }
  local n = tonumber(ARGV[next_arg + 2])
  check(n and c.lease ~= '', 'check')
  for i = 1, n do
    local spec = ARGV[next_arg + 2 + i]
    local subject = KEYS[next_key + 1]
    check(subject and spec, 'item')
    c.items[i] = { rule = KEYS[next_key], key = subject, spec = read_spec(spec) }
    next_key = next_key + 2
  end
  checks[#checks + 1] = c
  next_arg = next_arg + 3 + n
end

local now, at = clock()
local reply = { now }
-- Number of open reservations in the scope.
local open = redis.call('ZCARD', OPEN)
-- true if a reservation is open for longer than SETTLE.
local overdue = open > 0 and redis.call('ZCOUNT', OPEN, '-inf', text(now - SETTLE)) > 0

-- forget_rule: deletes the state of the rule, so that the rule is filled again. It is called if a
-- subject has a time in the future: the clock was set back, and the subject would block starts
-- until the clock reaches that time. In mode P nothing is deleted. Returns UNKNOWN.
local function forget_rule(item)
  if MODE ~= 'P' then
    redis.call('DEL', item.rule)
  end
  return UNKNOWN
end

-- counted_entry: returns the entry for a window (from 1) that counted starts block.
--
-- The functions check_sliding, check_count and check_item evaluate an item. They return nil if the
-- item allows a start, a status (a number), or the entry (a table) for the window that blocks the
-- start.
local function counted_entry(window, wait, ago)
  return { window = window - 1, wait = wait, ago = ago, only_reserved = 0 }
end

-- reserved_entry: returns the entry for a window (from 1) that only reservations block.
local function reserved_entry(window)
  return { window = window - 1, wait = 0, ago = 0, only_reserved = 1 }
end

-- check_sliding: evaluates an item with sliding windows. If several windows block, the entry is for
-- the window with the longest wait; a window that counted starts block precedes a window that only
-- reservations block. pending lists the times of the reservations of other groups.
local function check_sliding(item, pending)
  local s = item.spec
  local blocking = nil
  local packed = read_packed(item.spec, item.key)
  for i = 1, s.windows do
    local wait, ago, only_reserved = check_window(packed, item.key, s.max[i], s.per[i], pending, now)
    -- `nil, true`: a time in the future (check_window).
    if not wait and ago then
      return forget_rule(item)
    end
    if wait
      and (not blocking or only_reserved == 0 and (blocking.only_reserved == 1 or wait > blocking.wait))
    then
      blocking = { window = i - 1, wait = wait, ago = ago, only_reserved = only_reserved }
    end
  end
  return blocking
end

-- check_count: evaluates a fixed window or a calendar period from `from` to `to` (ms) with n starts.
-- pending lists the times of the reservations of other groups.
local function check_count(s, from, to, n, pending)
  if n >= s.most then
    return counted_entry(1, to - now, now - from)
  end
  if n + #pending >= s.most then
    return reserved_entry(1)
  end
end

-- check_item: evaluates an item for a check of the group.
local function check_item(item, group)
  local s = item.spec
  if read_rule_state(item.rule) ~= 'known' then
    return UNKNOWN
  end
  local pending = open > 0 and other_reservations(item.key, group) or {}
  if s.windows then
    return check_sliding(item, pending)
  end
  local window_start, n = read_count(item.key)
  if window_start and window_start > now + MAX_AHEAD then
    return forget_rule(item)
  end
  if s.kind == 'F' then
    if not window_start or now >= window_start + s.longest then
      window_start = now
      n = 0
    end
    return check_count(s, window_start, window_start + s.longest, n, pending)
  end
  local from, to = period_containing(s, now)
  if not from then
    return NO_PERIOD
  end
  return check_count(s, from, to, window_start == from and n or 0, pending)
end

-- append_answer: appends the status and the entries of a check to the reply.
local function append_answer(status, entries)
  reply[#reply + 1] = status
  reply[#reply + 1] = #entries
  for _, e in ipairs(entries) do
    for _, n in ipairs({ e.item, e.window, e.wait, e.ago, e.only_reserved }) do
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
  local first_item = c.items[1]
  return first_item and redis.call('ZSCORE', DONE, rule_name(first_item.key) .. '|' .. c.lease)
end

-- reserve_check: appends PASSED to the reply. In mode R it also reserves all items of the check.
local function reserve_check(c)
  if MODE == 'R' and #c.items > 0 then
    redis.call('ZADD', OPEN, at, c.lease)
    open = open + 1
  end
  for _, item in ipairs(MODE == 'R' and c.items or {}) do
    redis.call('ZADD', PENDING, '0', reservation(item.key, at, c.group, c.lease))
  end
  append_answer(PASSED, {})
end

-- serve_check: evaluates a check and appends its result to the reply.
local function serve_check(c)
  if MODE == 'R' and passed_before(c) then
    return append_answer(PASSED, {})
  end
  if overdue then
    return append_answer(UNSETTLED, {})
  end
  local entries = {}
  for i, item in ipairs(c.items) do
    local refusal = check_item(item, c.group)
    if type(refusal) == 'number' then
      local entry = { item = i - 1, window = 0, wait = 0, ago = 0, only_reserved = 0 }
      return append_answer(refusal, { entry })
    elseif refusal then
      refusal.item = i - 1
      entries[#entries + 1] = refusal
    end
  end
  if #entries == 0 then
    return reserve_check(c)
  end
  append_answer(LIMITED, entries)
end

for _, c in ipairs(checks) do
  serve_check(c)
end
return reply
