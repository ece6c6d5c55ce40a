-- quick: a shortcut in front of reserve.lua for its most frequent call: one check with one sliding window. It
-- answers in two cases: the window is full, or it has room even if every open reservation becomes a start. In
-- all other cases a `break` leaves the shortcut, and reserve.lua answers the call. The shortcut runs before
-- Lua creates the functions of base.lua and common.lua, because their creation takes longer than the check.
--
-- KEYS     as in reserve.lua
-- ARGV     as in reserve.lua
-- Returns  the number 2 (PASSED: the start may happen) without a list, or a list as in reserve.lua
-- Invariants: as in reserve.lua.

repeat
  -- ARGV[3] is the number of items (a rule and a subject), ARGV[5] the lease of a second check. Only one
  -- check with one item can be answered here.
  if ARGV[3] ~= '1' or ARGV[5] then
    break
  end
  -- The pattern matches "kind cap longest max per" of a rule with one sliding window: at most max starts in
  -- per ms. With one window, cap equals max, and longest equals per, so %2 and %3 match.
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
  -- The current time in ms, as a text: the seconds t[1] and the first 3 of the 6 digits of the microseconds
  -- t[2].
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  local now = tonumber(at)
  local open = call('ZCARD', OPEN)
  -- If a reservation has been open for longer than SETTLE ms, no check may pass; reserve.lua answers that.
  if open > 0 and call('ZCOUNT', OPEN, '-inf', string.format('%d', now - SETTLE)) > 0 then
    break
  end
  local state = call('GET', rule)
  local packed = kind == 'P' and (call('GET', subject) or '') or nil
  if not state or sub(state, 1, 6) ~= 'known|' then
    break
  end

  -- n is the number of further starts that the window allows if all open reservations become starts. There is
  -- room if the n-th newest start is older than the window. First n assumes that all reservations of the
  -- scope (pool) are for this subject, which needs no further command. If this gives less than 1, only the
  -- reservations of the subject are counted.
  local n = max - open
  local name = sub(subject, -35)
  local nth_newest_time = nil
  if n < 1 then
    n = max - call('ZLEXCOUNT', PENDING, '[' .. name .. '|', '(' .. name .. '}')
  end
  -- The reservations of this subject alone fill the window, so reserve.lua must decide.
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
    -- reserve.lua must decide if reservations make the window full (n is less than max), or if the clock of
    -- Redis was set back (the stored time is in the future).
    if n < tonumber(max) or nth_newest_time > now + MAX_AHEAD then
      break
    end
    -- The lease is the id of the start. If it was reserved or counted before, this call is a repetition, and
    -- the check must pass again although the window is full.
    if MODE == 'R'
      and (call('ZSCORE', OPEN, lease) or call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease))
    then
      break
    end
    return { now, LIMITED, 1, 0, 0, nth_newest_time + per - now, now - nth_newest_time, 0 }
  end
  if MODE == 'R' then
    -- The check passes. If the lease (id of the start) was counted or reserved before, this call is a
    -- repetition, and the start must not be reserved twice.
    if not call('ZSCORE', DONE, sub(rule, -12) .. '|' .. lease)
      and call('ZADD', OPEN, 'NX', at, lease) == 1
    then
      call('ZADD', PENDING, '0', name .. '|' .. at .. '|' .. ARGV[2] .. '|' .. lease)
    end
  end
  return PASSED
until true
