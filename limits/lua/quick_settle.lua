-- quick_settle: a shortcut in front of settle.lua for the most frequent call: one reservation of
-- one sliding window is closed by the process that made it. At a `break`, settle.lua serves the
-- call as if this file did not exist.
--
-- KEYS     as in settle.lua
-- ARGV     as in settle.lua
-- Returns  the number 1: the reservation is closed
-- Invariants: as in settle.lua.

repeat
  -- Not exactly one item, or more than one entry, or no group (settle.lua).
  if ARGV[5] ~= '1' or ARGV[7] or ARGV[2] == '' then
    break
  end
  -- The spec of a rule with one window repeats cap as max and longest as per.
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
  -- Some servers write the score as 1.8e+12.
  at = string.format('%d', tonumber(at))
  local reservation = sub(subject, -35) .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease
  -- The start did not happen: nothing is counted.
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
  -- The rule is unknown, or its state must be renewed (renew_known in settle.lua).
  if not state or sub(state, 1, 6) ~= 'known|' or now - sub(state, 7, 19) > per / 2 then
    break
  end
  -- A start with a later time is stored already: settle.lua inserts this start in the order of the
  -- times.
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
