-- reserve: evaluates checks. A check asks whether one start of a task may happen now under the given rules
-- (rate limits). In mode R, the script also reserves each start whose check passes: the start counts before
-- it happens. So if a rule allows one more start, only one of two simultaneous checks passes.
--
-- KEYS     as in keys.lua
-- MODE     a constant that scripts.go puts in front of the script. R: reserve. P: write nothing
-- ARGV     for each check:
--     lease           id of the start
--     group           checks with the same group are alternatives: at most one of them starts
--     n               number of items; an item is a rule and its subject
--     spec, n times   the specs of the rules of the items (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then for each check:
--     status  UNKNOWN, LIMITED, PASSED, UNSETTLED or NO_PERIOD (keys.lua)
--     m       number of entries that follow. With status LIMITED, there is one entry for each item that
--             refuses the start. With another status, m is 0
--     and for each entry:
--     item    index of the item in its check, from 0
--     window  index of the window in the rule of the item, from 0
--     wait    ms until the window allows a start
--     ago     age in ms of the oldest start that blocks the window
--     only_reserved
--             1 if only counted starts and reservations together fill the window; else 0
--
-- Invariants:
--   If an item of a check refuses the start, the script reserves nothing for the check.
--   A check does not count the reservations of its own group.
--   In mode R, a check passes again if its lease was reserved or counted before.
--   Any other check does not pass while one of its rules is unknown.
--   Any other check does not pass while a reservation of the scope is overdue: a process must first find out
--   whether the start of this reservation happened.

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
-- Number of open reservations of the scope. Each reservation of this call increases it.
local open = redis.call('ZCARD', OPEN)
-- While a reservation is overdue, nobody knows whether its start happened, so no new check passes.
local overdue = open > 0 and redis.call('ZCOUNT', OPEN, '-inf', text(now - SETTLE)) > 0

-- forget_rule: is called if a stored time of the item is in the future. This time would block starts until the
-- clock of Redis reaches it. In mode R, forget_rule makes the rule unknown, so that a process fills it again.
-- It also deletes the key of the subject, because the history may have no start with which fill.lua would
-- overwrite this key. It returns UNKNOWN.
local function forget_rule(item)
  if MODE ~= 'P' then
    redis.call('DEL', item.rule, item.key)
  end
  return UNKNOWN
end

-- counted_entry: returns the entry of the reply for a window that is full of counted starts. The parameters are
-- the index of the window (from 1), the time (ms) until it allows a start, and the age (ms) of the start that
-- blocks it.
local function counted_entry(window, wait, ago)
  return { window = window - 1, wait = wait, ago = ago, only_reserved = 0 }
end

-- reserved_entry: returns the entry of the reply for a window that is full only if reservations count, too. Its
-- fields wait and ago are 0, because nobody knows when the reservations end.
local function reserved_entry(window)
  return { window = window - 1, wait = 0, ago = 0, only_reserved = 1 }
end

-- check_sliding: evaluates an item whose rule has sliding windows. pending lists the times (ms) of the
-- reservations of its subject. If all windows allow the start, it returns nil. If a stored time is in the
-- future, it returns a status (forget_rule). Otherwise it returns the entry of the full window with the longest
-- wait. An entry with only_reserved = 1 has no known wait, so it is returned only if no full window has a known
-- wait.
local function check_sliding(item, pending)
  local s = item.spec
  local blocking = nil
  for i = 1, s.windows do
    local wait, ago, only_reserved = check_window(item.key, s.max[i], s.per[i], pending, now)
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

-- check_count: evaluates a fixed window or a calendar period that lasts from `from` to `to` (ms) and has n
-- counted starts. s is the spec table of the rule, pending the list of reservations of the subject. Returns nil
-- if the start is allowed, else an entry of the reply.
local function check_count(s, from, to, n, pending)
  if n >= s.most then
    return counted_entry(1, to - now, now - from)
  end
  if n + #pending >= s.most then
    return reserved_entry(1)
  end
end

-- check_item: evaluates an item for a check of `group`. Returns nil if the rule allows the start, an entry of
-- the reply if the rule refuses the start, or a status if the rule cannot be evaluated.
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

-- append_answer: appends the answer for one check at the end of `reply`. An answer has a status, the number of
-- entries, and five numbers for each entry.
local function append_answer(status, entries)
  reply[#reply + 1] = status
  reply[#reply + 1] = #entries
  for _, e in ipairs(entries) do
    for _, n in ipairs({ e.item, e.window, e.wait, e.ago, e.only_reserved }) do
      reply[#reply + 1] = n
    end
  end
end

-- passed_before: reports whether check c has already passed. Then the start (of a task) for which c asks is
-- reserved or counted already. Such a check was sent again, and must pass again.
local function passed_before(c)
  if open > 0 and redis.call('ZSCORE', OPEN, c.lease) then
    return true
  end
  local first_item = c.items[1]
  return first_item and redis.call('ZSCORE', DONE, rule_name(first_item.key) .. '|' .. c.lease)
end

-- reserve_check: appends to the reply that check c has passed. In mode R it reserves the start.
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

-- serve_check: evaluates check c and appends the answer to the reply. If an item cannot be evaluated, the status
-- of this item is the answer.
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
      return append_answer(refusal, {})
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
