-- quick: what is asked most is one check of one sliding window, and mostly there is
-- room for it and for all that is reserved, or the window is full. That is answered
-- here, before the functions of base.lua and common.lua are made, which takes longer
-- than such a check. At a break all goes on below, as if this were not here.
-- KEYS, ARGV and what is kept: as reserve.lua. Returns  2 (PASSED) alone, or as reserve.lua
repeat
  if ARGV[3] ~= '1' or ARGV[5] then
    break
  end
  local kind, max, per = string.match(ARGV[4], '^([PL]) (%d+) (%d+) %2 %3$')
  if not kind then
    break
  end
  local call = redis.call
  local sub = string.sub
  local lease = ARGV[1]
  local rule = KEYS[FIRST + 1]
  local subject = KEYS[FIRST + 2]
  local t = call('TIME')
  -- us to ms
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  local now = tonumber(at)
  local open = call('ZCARD', OPEN)
  if open > 0 and call('ZCOUNT', OPEN, '-inf', string.format('%d', now - SETTLE)) > 0 then
    break
  end
  local state = call('GET', rule)
  local packed = kind == 'P' and (call('GET', subject) or '') or nil
  if not state or sub(state, 1, 6) ~= 'known|' then
    break
  end

  -- There is room beside all that is reserved if the n-th newest start is old enough.
  local n = max - open
  local name = sub(subject, -35)
  local old = nil
  if n < 1 then
    n = max - call('ZLEXCOUNT', PENDING, '[' .. name .. '|', '(' .. name .. '}')
  end
  if n < 1 then
    break
  end
  if packed then
    old = sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n)
  else
    old = call('LINDEX', subject, string.format('%d', n - 1))
  end
  old = tonumber(old or nil)
  if old and old > now - per then
    if n < tonumber(max) or old > now + AHEAD then
      break
    end
    if MODE == 'R'
      and (call('ZSCORE', OPEN, lease) or call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease))
    then
      break
    end
    return { now, LIMITED, 1, 0, 0, old + per - now, now - old, 0 }
  end
  if MODE == 'R' then
    if not call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease)
      and call('ZADD', OPEN, 'NX', at, lease) == 1
    then
      call('ZADD', PENDING, '0', name .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease)
    end
  end
  return PASSED
until true
