-- settle: what became of reservations, and what started without one.
-- KEYS     keys.lua; then rule and subject of each item
-- ARGV     per entry: lease, group, 1 = it started, 0 = it did not, how long ago
--          (ms; of what was not reserved), number of items; and per item: spec
-- Returns  now (ms); then per entry: 1 if the lease was reserved until now, else 0;
--          now alone: nothing was done, since no period of a calendar has this time
-- Keeps    each rule counts a lease once, however often this is sent. A rule that
--          is not known counts nothing: it is filled from the history.
local now = clock()

-- pack writes a time into packed ones.
local function pack(packed, at, cap)
  local new = word(at)
  local i = 1
  while string.sub(packed, i, i + DIGITS - 1) > new do
    i = i + DIGITS
  end
  return string.sub(string.sub(packed, 1, i - 1) .. new .. string.sub(packed, i), 1, DIGITS * cap)
end

-- insert puts a time into a list, newest first, and returns its length.
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

-- slide_count counts a start of a sliding subject, whose packed times are known.
local function slide_count(s, key, packed, at, now)
  if packed then
    return redis.call('SET', key, pack(packed, at, s.cap), 'PX', text(s.longest))
  end
  trim(s.cap, text(s.longest), key, now, insert(key, at, now))
end

-- count adds one start at a time to a subject.
local function count(s, key, at, now)
  if s.windows then
    return slide_count(s, key, packed_of(s, key), at, now)
  end
  local since, n = read_count(key)
  if s.kind == 'F' then
    -- A start that comes late, from before the window, counts in it.
    if not since or at >= since + s.longest then
      since = at
      n = 0
    end
    return write_count(s, key, since, n + 1, now)
  end
  local from = period(s, at)
  -- of a period that is over
  if not from or since and since > from then
    return
  end
  if since ~= from then
    n = 0
  end
  write_count(s, key, from, n + 1, now)
end

-- keep_known keeps a rule known that is used.
local function keep_known(rule, since, longest, now)
  if now - since > longest / 2 then
    set_known(rule, longest, now)
  end
end

-- unreserve ends a reservation and says when it was made. A process that
-- settles what another one reserved may know other items: so all are looked for.
local function unreserve(lease, group, keys)
  local at = redis.call('ZSCORE', OPEN, lease)
  if not at then
    return nil
  end
  -- some servers write it as 1.8e+12
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
