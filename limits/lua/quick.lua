-- quick: a shortcut in front of reserve.lua for its most frequent call: one check of one sliding window. The
-- shortcut answers in two cases: the window is full, or it has room even if every open reservation becomes a
-- start. It runs before Lua creates the functions of base.lua and common.lua, because their creation takes
-- longer than the check. In all other cases a `break` leaves the shortcut, and reserve.lua answers the call.
--
-- KEYS     as in reserve.lua
-- ARGV     as in reserve.lua
-- Returns  the number 2 (PASSED: the start may happen) without a list, or a list as in reserve.lua
-- Invariants: as in reserve.lua.

repeat
  -- Leave the shortcut if the check does not have exactly one item (a rule and a subject), or if the call
  -- contains another check.
  if ARGV[3] ~= '1' or ARGV[5] then
    break
  end
  -- The pattern matches only the spec of a rule with one sliding window, "kind cap longest max per". With
  -- one window, max equals cap, and per equals longest.
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
  -- The current time in ms, as a text. t[1] is in seconds. t[2] is the microseconds of the second: padded
  -- to 6 digits, its first 3 digits are the milliseconds.
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  local now = tonumber(at)
  local open = call('ZCARD', OPEN)
  -- Leave the shortcut if a reservation of the scope has been open for longer than SETTLE ms.
  if open > 0 and call('ZCOUNT', OPEN, '-inf', string.format('%d', now - SETTLE)) > 0 then
    break
  end
  local state = call('GET', rule)
  local packed = kind == 'P' and (call('GET', subject) or '') or nil
  if not state or sub(state, 1, 6) ~= 'known|' then
    break
  end

  -- n is the number of starts for which the window has room if all open reservations become starts. So the
  -- window has room if its n-th newest start is older than the window. At first, n assumes that all
  -- reservations of the scope are for this subject. If n is then less than 1, it is computed again with only
  -- the reservations of this subject.
  local n = max - open
  local name = sub(subject, -35)
  local nth_newest_time = nil
  if n < 1 then
    n = max - call('ZLEXCOUNT', PENDING, '[' .. name .. '|', '(' .. name .. '}')
  end
  -- The reservations of the subject alone fill the window: leave the shortcut.
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
    -- Leave the shortcut if reservations may decide whether the window is full, or if the stored time is in
    -- the future because the clock of Redis was set back.
    if n < tonumber(max) or nth_newest_time > now + MAX_AHEAD then
      break
    end
    -- Leave the shortcut if the lease (id of the start) was reserved or counted before: then the check must
    -- pass again.
    if MODE == 'R'
      and (call('ZSCORE', OPEN, lease) or call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease))
    then
      break
    end
    return { now, LIMITED, 1, 0, 0, nth_newest_time + per - now, now - nth_newest_time, 0 }
  end
  if MODE == 'R' then
    -- If the lease (id of the start) was counted or reserved before, the check passes, but the script does
    -- not reserve it again.
    if not call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease)
      and call('ZADD', OPEN, 'NX', at, lease) == 1
    then
      call('ZADD', PENDING, '0', name .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease)
    end
  end
  return PASSED
until true
