-- quick: a shortcut in front of reserve.lua for the most frequent call: one check of one sliding
-- window, which has room even if all open reservations start, or which is full. Such a call is
-- answered before the functions of base.lua and common.lua are created, because their creation takes
-- longer than the check. At a `break`, reserve.lua serves the call as if this file did not exist.
--
-- KEYS     as in reserve.lua
-- ARGV     as in reserve.lua
-- Returns  the number 2 (PASSED) alone, or the reply of reserve.lua
-- Invariants: as in reserve.lua.

repeat
  -- Not exactly one item, or more than one check.
  if ARGV[3] ~= '1' or ARGV[5] then
    break
  end
  -- The spec of a rule with one window repeats cap as max and longest as per.
  local kind, max, per = string.match(ARGV[4], '^([PL]) (%d+) (%d+) %2 %3$')
  if not kind then
    break
  end
  local call = redis.call
  local sub = string.sub
  local lease = ARGV[1]
  local rule = KEYS[FIXED_KEYS + 1]
  local subject = KEYS[FIXED_KEYS + 2]
  local t = call('TIME')
  -- The first three of six digits of the microseconds are the milliseconds.
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  local now = tonumber(at)
  local open = call('ZCARD', OPEN)
  -- A reservation is overdue.
  if open > 0 and call('ZCOUNT', OPEN, '-inf', string.format('%d', now - SETTLE)) > 0 then
    break
  end
  local state = call('GET', rule)
  local packed = kind == 'P' and (call('GET', subject) or '') or nil
  if not state or sub(state, 1, 6) ~= 'known|' then
    break
  end

  -- Even if all open reservations start, the window has room if the n-th newest start is outside
  -- the window. First, n assumes that all reservations of the scope concern this subject. If that
  -- leaves no room, only the reservations of this subject are subtracted.
  local n = max - open
  local name = sub(subject, -35)
  local nth_newest_time = nil
  if n < 1 then
    n = max - call('ZLEXCOUNT', PENDING, '[' .. name .. '|', '(' .. name .. '}')
  end
  -- Reservations alone fill the window.
  if n < 1 then
    break
  end
  if packed then
    nth_newest_time = sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n)
  else
    nth_newest_time = call('LINDEX', subject, string.format('%d', n - 1))
  end
  nth_newest_time = tonumber(nth_newest_time or nil)
  if nth_newest_time and nth_newest_time > now - per then
    -- Reservations may block the window, or the clock was set back.
    if n < tonumber(max) or nth_newest_time > now + MAX_AHEAD then
      break
    end
    -- A lease that was reserved or counted before passes.
    if MODE == 'R'
      and (call('ZSCORE', OPEN, lease) or call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease))
    then
      break
    end
    return { now, LIMITED, 1, 0, 0, nth_newest_time + per - now, now - nth_newest_time, 0 }
  end
  if MODE == 'R' then
    -- A lease that was counted or reserved before is not reserved again.
    if not call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease)
      and call('ZADD', OPEN, 'NX', at, lease) == 1
    then
      call('ZADD', PENDING, '0', name .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease)
    end
  end
  return PASSED
until true
