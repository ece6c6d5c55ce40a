-- quick_settle: a shortcut in front of settle.lua for its most frequent call: a process closes one
-- reservation (a start that was counted in advance) that it made itself in one sliding window. In all other
-- cases a `break` leaves the shortcut, and settle.lua answers the call.
--
-- KEYS     as in settle.lua
-- ARGV     as in settle.lua
-- Returns  the number 1, without a list: the reservation is closed
-- Invariants: as in settle.lua.

repeat
  -- Leave the shortcut in three cases: the entry does not have exactly one item (a rule and a subject), the
  -- call has another entry, or the group is empty (then settle.lua must search for the reservation).
  if ARGV[5] ~= '1' or ARGV[7] or ARGV[2] == '' then
    break
  end
  -- The pattern matches only the spec of a rule with one sliding window, "kind cap longest max per". With
  -- one window, max equals cap, and per equals longest.
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
  -- Some Redis servers return a score in the form 1.8e+12. The next line converts the score (the time of the
  -- reservation) to digits.
  at = string.format('%d', tonumber(at))
  local reservation = sub(subject, -35) .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease
  -- The start did not happen: delete the reservation and count nothing.
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
  -- Leave the shortcut if the rule is not known (Redis may lack its starts), or if its state must be written
  -- again to renew the TTL (renew_known in settle.lua).
  if not state or sub(state, 1, 6) ~= 'known|' or now - sub(state, 7, 19) > per / 2 then
    break
  end
  -- Leave the shortcut if the subject already has a later start: only settle.lua can insert this start behind
  -- that one.
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
