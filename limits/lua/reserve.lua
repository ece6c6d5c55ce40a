-- reserve: may these start?
-- KEYS     keys.lua; then rule and subject of each item
-- MODE     R reserve, P only look
-- ARGV     per check: lease, group, number of items; and per item: the spec
-- Returns  now (ms); then per check: status, number of entries, and per entry:
--          item, window (both from 0), ms until it opens, ms since the oldest
--          start that keeps it shut, 1 if only reservations keep it shut
-- Keeps    all items of a check let it pass, or nothing is written for it. Checks of
--          one group are alternatives: they do not stand in each other's way. A lease
--          that was reserved or counted passes (R). No check passes with a rule that is
--          not known, nor while a reservation is overdue: whether it was used must be
--          found out first.
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
-- reservations of all
local open = redis.call('ZCARD', OPEN)
local overdue = open > 0 and redis.call('ZCOUNT', OPEN, '-inf', text(now - SETTLE)) > 0

-- doubt makes a rule unknown whose subject has a time that is yet to come: the
-- clock went back, and would keep the subject shut until it is there again.
local function doubt(item)
  if MODE ~= 'P' then
    redis.call('DEL', item.rule)
  end
  return UNKNOWN
end

-- A judgement is nothing (it passes), a status, or what keeps it shut.
local function shut(window, wait, ago)
  return { window = window - 1, wait = wait, ago = ago, soft = 0 }
end

local function shut_by_reservations(window)
  return { window = window - 1, wait = 0, ago = 0, soft = 1 }
end

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

-- tally judges what has one window at a time, of which from and to are known.
local function tally(s, from, to, n, pending)
  if n >= s.most then
    return shut(1, to - now, now - from)
  end
  if n + #pending >= s.most then
    return shut_by_reservations(1)
  end
end

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

local function answer(status, entries)
  reply[#reply + 1] = status
  reply[#reply + 1] = #entries
  for _, e in ipairs(entries) do
    for _, n in ipairs({ e.item, e.window, e.wait, e.ago, e.soft }) do
      reply[#reply + 1] = n
    end
  end
end

-- passed_before says whether this very check passed already: it was sent again.
local function passed_before(c)
  if open > 0 and redis.call('ZSCORE', OPEN, c.lease) then
    return true
  end
  local first = c.items[1]
  return first and redis.call('ZSCORE', DONE, rule_name(first.key) .. '|' .. c.lease)
end

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
