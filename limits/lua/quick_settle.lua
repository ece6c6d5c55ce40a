-- quick_settle: what is settled most is one reservation of one sliding window, by who
-- made it. As quick.lua is to reserve.lua, so is this to settle.lua.
-- KEYS, ARGV and what is kept: as settle.lua. Returns  1: it was done
repeat
  if ARGV[5] ~= '1' or ARGV[7] or ARGV[2] == '' then
    break
  end
  local kind, max, per = string.match(ARGV[6], '^([PL]) (%d+) (%d+) %2 %3$')
  local call = redis.call
  local sub = string.sub
  local lease = ARGV[1]
  local rule = KEYS[FIRST + 1]
  local subject = KEYS[FIRST + 2]
  local at = kind and call('ZSCORE', OPEN, lease)
  if not at then
    break
  end
  -- some servers write it as 1.8e+12
  at = string.format('%d', tonumber(at))
  local reservation = sub(subject, -35) .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease
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
  if not state or sub(state, 1, 6) ~= 'known|' or now - sub(state, 7, 19) > per / 2 then
    break
  end
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
      trim(max, per, subject, now, call('LPUSH', subject, at))
    end
  end
  return 1
until true
