-- settle: closes reservations. It counts the starts that happened, also those without a reservation.
--
-- KEYS     as in keys.lua
-- ARGV     for each entry:
--     lease           id of the start
--     group           group of the check; empty if another process may have made the reservation
--     started         1 if the start happened, 0 if it did not
--     ago             ms since the start; used only without a reservation
--     n               number of items
--     spec, n times   the specs of the rules (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then for each entry:
--     1  the lease had an open reservation
--     0  the lease had no open reservation
--     The time alone means that nothing was done: the spec of a calendar contains no period for this
--     time.
--
-- Invariants:
--   Each rule counts a lease once, even if the call is sent again within REMEMBER.
--   A rule that is unknown or filling counts nothing, because the history will contain the start.

local now = clock()

-- pack: inserts the time `at` into packed times. Returns the new text with at most cap times.
local function pack(packed, at, cap)
  local new = word(at)
  local i = 1
  while string.sub(packed, i, i + DIGITS - 1) > new do
    i = i + DIGITS
  end
  return string.sub(string.sub(packed, 1, i - 1) .. new .. string.sub(packed, i), 1, DIGITS * cap)
end

-- insert: inserts the time `at` into a list, newest first. Returns the length of the list.
local function insert(key, at, now)
  if at == now then
    return redis.call('LPUSH', key, text(at))
  end
  local head = tonumber(redis.call('LINDEX', key, 0) or nil)
  if not head or at >= head then
    return redis.call('LPUSH', key, text(at))
  end
  local i = 1
  local other = head
  while other and other > at do
    other = tonumber(redis.call('LINDEX', key, i) or nil)
    i = i + 1
  end
  if other then
    return redis.call('LINSERT', key, 'BEFORE', text(other), text(at))
  end
  return redis.call('RPUSH', key, text(at))
end

-- slide_count: adds a start at the time `at` to a sliding subject. If packed is nil, the subject is
-- a list.
local function slide_count(s, key, packed, at, now)
  if packed then
    return redis.call('SET', key, pack(packed, at, s.cap), 'PX', text(s.longest))
  end
  trim(s.cap, text(s.longest), key, now, insert(key, at, now))
end

-- count: adds one start at the time `at` to a subject of any kind.
local function count(s, key, at, now)
  if s.windows then
    return slide_count(s, key, packed_of(s, key), at, now)
  end
  local since, n = read_count(key)
  if s.kind == 'F' then
    -- A late start from before the window is counted in the current window.
    if not since or at >= since + s.longest then
      since = at
      n = 0
    end
    return write_count(s, key, since, n + 1, now)
  end
  local from = period(s, at)
  -- The start belongs to a period that has ended.
  if not from or since and since > from then
    return
  end
  if since ~= from then
    n = 0
  end
  write_count(s, key, from, n + 1, now)
end

-- keep_known: renews the state of a known rule if half of `longest` has passed since `since`, the
-- time of its latest write.
local function keep_known(rule, since, longest, now)
  if now - since > longest / 2 then
    set_known(rule, longest, now)
  end
end

-- unreserve: deletes the reservation of the lease. Returns the time (ms) of the reservation, or nil
-- if the lease has no open reservation. If group is empty, another process may have made the
-- reservation with other items, so all members of KEYS[2] are searched.
local function unreserve(lease, group, keys)
  local at = redis.call('ZSCORE', OPEN, lease)
  if not at then
    return nil
  end
  -- Some servers write the score as 1.8e+12.
  at = text(tonumber(at))
  for _, key in ipairs(keys) do
    redis.call('ZREM', PENDING, reservation(key, at, group, lease))
  end
  if group == '' then
    local tail = '|' .. lease
    for _, member in ipairs(redis.call('ZRANGE', PENDING, 0, -1)) do
      if string.sub(member, -#tail) == tail then
        redis.call('ZREM', PENDING, member)
      end
    end
  end
  redis.call('ZREM', OPEN, lease)
  return tonumber(at)
end

-- settle: closes the reservation of entry e, and counts its start if it happened. Returns 1 if the
-- lease had an open reservation, else 0.
local function settle(e)
  local reserved_at = unreserve(e.lease, e.group, e.keys)
  if e.started then
    for i, key in ipairs(e.keys) do
      local state, at = state_of(e.rules[i])
      if (state == 'known' or state == 'settling') and remember(rule_name(key), e.lease, now) then
        count(e.specs[i], key, reserved_at or now - e.ago, now)
        if state == 'known' then
          keep_known(e.rules[i], at, e.specs[i].longest, now)
        end
      end
    end
  end
  return reserved_at and 1 or 0
end

-- Read all arguments before the first write.
local entries = {}
local at = 1
local key = FIRST + 1
while ARGV[at] do
  local n = tonumber(ARGV[at + 4])
  check(n, 'entry')
  local e = {
    lease = ARGV[at],
    group = ARGV[at + 1],
    started = ARGV[at + 2] == '1',
    ago = tonumber(ARGV[at + 3]),
    rules = {},
    keys = {},
    specs = {},
  }
  check(e.ago, 'time')
  for i = 1, n do
    check(KEYS[key + 1], 'keys')
    e.rules[i] = KEYS[key]
    e.keys[i] = KEYS[key + 1]
    e.specs[i] = read_spec(ARGV[at + 4 + i])
    if e.specs[i].kind == 'C' and not period(e.specs[i], now) then
      return { now }
    end
    key = key + 2
  end
  entries[#entries + 1] = e
  at = at + 5 + n
end

forget_old(now)
local reply = { now }
for i, e in ipairs(entries) do
  reply[i + 1] = settle(e)
end
return reply
