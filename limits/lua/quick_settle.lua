-- quick_settle: a shortcut in front of settle.lua for its most frequent call: a process closes one
-- reservation (a start that counts before it happens) that it made itself in one sliding window. In all other
-- cases a `break` leaves the shortcut, and settle.lua answers the call.
--
-- KEYS     as in settle.lua
-- ARGV     as in settle.lua
-- Returns  the number 1, without a list: the reservation is closed
-- Invariants: as in settle.lua.

repeat
  -- ARGV[5] is the number of items (a rule and a subject), ARGV[7] the lease of a second entry. Only one
  -- entry with one item can be answered here. If the group ARGV[2] is empty, settle.lua must search for the
  -- reservation.
  if ARGV[5] ~= '1' or ARGV[7] or ARGV[2] == '' then
    break
  end
  -- The pattern matches "kind cap longest max per" of a rule with one sliding window: at most max starts in
  -- per ms. With one window, cap equals max, and longest equals per, so %2 and %3 match.
  local kind, max, per = string.match(ARGV[6], '^([PL]) (%d+) (%d+) %2 %3$')
  local call = redis.call
  local sub = string.sub
  local lease = ARGV[1]
  local rule = KEYS[FIXED_KEYS + 1]
  local subject = KEYS[FIXED_KEYS + 2]
  local at = kind and call('ZSCORE', OPEN, lease)
  if not at then
    break
  end
  -- `at` is the time of the reservation, which the name of the reservation contains as digits. Some Redis
  -- servers return the score as 1.8e+12, so it is converted to digits.
  at = string.format('%d', tonumber(at))
  local reservation = sub(subject, -35) .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease
  -- The start did not happen: the reservation is deleted, and no start is counted.
  if ARGV[3] ~= '1' then
    call('ZREM', PENDING, reservation)
    call('ZREM', OPEN, lease)
    return 1
  end
  local t = call('TIME')
  local now = tonumber(t[1] .. sub('00000' .. t[2], -6, -4))
  local state = call('GET', rule)
  local packed = nil
  local newest = nil
  if kind == 'P' then
    packed = call('GET', subject) or ''
    newest = sub(packed, 1, DIGITS)
  else
    newest = call('LINDEX', subject, '0')
  end
  -- settle.lua must answer in two cases: Redis may lack starts of the rule (its state is not "known"), or the
  -- state must be written again to renew its TTL (renew_known in settle.lua).
  if not state or sub(state, 1, 6) ~= 'known|' or now - sub(state, 7, 19) > per / 2 then
    break
  end
  -- The subject has a later start already. The times must stay sorted, and only settle.lua can insert this
  -- start behind a later one.
  if (tonumber(newest or nil) or 0) > tonumber(at) then
    break
  end

  call('ZREM', PENDING, reservation)
  call('ZREM', OPEN, lease)
  call('ZREMRANGEBYSCORE', DONE, '-inf', string.format('%d', now - REMEMBER))
  if call('ZADD', DONE, 'NX', string.format('%d', now), sub(rule, -12) .. '|' .. lease) == 1 then
    call('PEXPIRE', DONE, REMEMBER)
    if packed then
      call('SET', subject, at .. sub(packed, 1, DIGITS * max - DIGITS), 'PX', per)
    else
      trim_list(max, per, subject, now, call('LPUSH', subject, at))
    end
  end
  return 1
until true
