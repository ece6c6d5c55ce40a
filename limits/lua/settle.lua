-- settle: closes reservations. A reservation is a start of a task that counts before it happens. If the start
-- happened, each rule of the entry counts it from now on. If not, the start no longer counts. The script also
-- counts starts that have no reservation.
--
-- KEYS     as in keys.lua
-- ARGV     for each entry, which settles one start:
--     lease           id of the start
--     group           group of the check that made the reservation. It is empty if the caller does not know
--                     the group, because another process may have made the reservation
--     started         1 if the start happened, 0 if it did not
--     ago             age of the start in ms; used only if the lease has no open reservation
--     n               number of items; an item is a rule and its subject
--     spec, n times   the specs of the rules of the items (keys.lua)
-- Returns  a list of numbers: the time of Redis (ms), then for each entry:
--     1  the lease had an open reservation
--     0  the lease had no open reservation
--     If the list contains only the time, the script did nothing, because the spec of a calendar rule
--     contains no period for the current time of Redis.
--
-- Invariants:
--   Each rule counts a lease once, even if the same call is sent again within REMEMBER ms.
--   A rule that is unknown or in the state "filling" counts nothing: the history that fills the rule will
--   contain the start.

local now = clock()

-- insert_in_list: inserts the time `at` (ms) into the Redis list `key`, whose newest time is first. now is
-- the current time. Returns the new length of the list.
local function insert_in_list(key, at, now)
  if at == now then
    return redis.call('LPUSH', key, text(at))
  end
  local head = tonumber(redis.call('LINDEX', key, 0) or nil)
  if not head or at >= head then
    return redis.call('LPUSH', key, text(at))
  end
  local i = 1
  local stored = head
  while stored and stored > at do
    stored = tonumber(redis.call('LINDEX', key, i) or nil)
    i = i + 1
  end
  if stored then
    return redis.call('LINSERT', key, 'BEFORE', text(stored), text(at))
  end
  return redis.call('RPUSH', key, text(at))
end

-- trim_list: is called after a start was added to the Redis list `key`. It deletes times that are not needed,
-- and renews the TTL. s is the spec table of the rule, length the number of times in the list.
local function trim_list(s, key, now, length)
  if length > s.cap then
    redis.call('LTRIM', key, '0', text(s.cap - 1))
  elseif length % 4 == 0 then
    -- After every fourth start, at most 8 expired times are deleted. So expired times are deleted faster than
    -- starts add times.
    for _ = 1, 8 do
      local last = tonumber(redis.call('LINDEX', key, '-1') or nil)
      if not last or last > now - s.longest then
        break
      end
      redis.call('RPOP', key)
    end
  end
  redis.call('PEXPIRE', key, text(s.longest))
end

-- count_start: counts a start at the time `at` (ms) for one subject of a rule. s is the spec table of the
-- rule, key the Redis key of the subject.
local function count_start(s, key, at, now)
  if s.windows then
    return trim_list(s, key, now, insert_in_list(key, at, now))
  end
  local window_start, n = read_count(key)
  if s.kind == 'F' then
    -- A start that is older than the current window was reported late. It is counted in the current window.
    if not window_start or at >= window_start + s.longest then
      window_start = at
      n = 0
    end
    return write_count(s, key, window_start, n + 1, now)
  end
  local period_start = period_containing(s, at)
  -- If the period of this start has ended, the start does not count any more.
  if not period_start or window_start and window_start > period_start then
    return
  end
  if window_start ~= period_start then
    n = 0
  end
  write_count(s, key, period_start, n + 1, now)
end

-- renew_known: renews the TTL of `rule`, the Redis key of a known rule. since is the time (ms) at which the key
-- was last written. To save writes, renew_known does nothing within longest / 2 ms after since.
local function renew_known(rule, since, longest, now)
  if now - since > longest / 2 then
    set_known(rule, longest, now)
  end
end

-- delete_reservation: deletes the open reservation of the start `lease`. keys lists the Redis keys of its
-- subjects. If group is empty, another process may have made the reservation for other subjects, so all
-- members of KEYS[2] are searched. Returns the time (ms) of the reservation, or nil.
local function delete_reservation(lease, group, keys)
  local at = redis.call('ZSCORE', OPEN, lease)
  if not at then
    return nil
  end
  -- Some Redis servers return the score as 1.8e+12. The members of KEYS[2] contain all digits of the time.
  at = text(tonumber(at))
  for _, key in ipairs(keys) do
    redis.call('ZREM', PENDING, reservation(key, at, group, lease))
  end
  if group == '' then
    local suffix = '|' .. lease
    for _, member in ipairs(redis.call('ZRANGE', PENDING, 0, -1)) do
      if string.sub(member, -#suffix) == suffix then
        redis.call('ZREM', PENDING, member)
      end
    end
  end
  redis.call('ZREM', OPEN, lease)
  return tonumber(at)
end

-- settle_entry: closes the reservation of the start that e describes. If the start happened, each rule of e
-- counts it once. Returns 1 if there was an open reservation, else 0.
local function settle_entry(e)
  local reserved_at = delete_reservation(e.lease, e.group, e.keys)
  if e.started then
    for i, key in ipairs(e.keys) do
      local state, written_at = read_rule_state(e.rules[i])
      if (state == 'known' or state == 'settling') and record_counted(rule_name(key), e.lease, now) then
        count_start(e.specs[i], key, reserved_at or now - e.ago, now)
        if state == 'known' then
          renew_known(e.rules[i], written_at, e.specs[i].longest, now)
        end
      end
    end
  end
  return reserved_at and 1 or 0
end

local entries = {}
local next_arg = 1
local next_key = FIXED_KEYS + 1
while ARGV[next_arg] do
  local n = tonumber(ARGV[next_arg + 4])
  check(n, 'entry')
  local e = {
    lease = ARGV[next_arg],
    group = ARGV[next_arg + 1],
    started = ARGV[next_arg + 2] == '1',
    ago = tonumber(ARGV[next_arg + 3]),
    rules = {},
    keys = {},
    specs = {},
  }
  check(e.ago, 'time')
  for i = 1, n do
    check(KEYS[next_key + 1], 'keys')
    e.rules[i] = KEYS[next_key]
    e.keys[i] = KEYS[next_key + 1]
    e.specs[i] = read_spec(ARGV[next_arg + 4 + i])
    if e.specs[i].kind == 'C' and not period_containing(e.specs[i], now) then
      return { now }
    end
    next_key = next_key + 2
  end
  entries[#entries + 1] = e
  next_arg = next_arg + 5 + n
end

delete_old_leases(now)
local reply = { now }
for i, e in ipairs(entries) do
  reply[i + 1] = settle_entry(e)
end
return reply
