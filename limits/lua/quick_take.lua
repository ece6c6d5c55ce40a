-- quick_take: a shortcut in front of take.lua for its most frequent call: one taking (one request to a limit
-- set) with one sliding window. In all other cases a `break` leaves the shortcut, and take.lua answers the
-- call. Each path uses as few Redis commands as possible, because they determine how long the script takes.
--
-- KEYS     as in takes.lua
-- ARGV     as in take.lua
-- Returns  if the cost is allowed, a list of 4 numbers:
--     verdict  ALLOWED (takes.lua)
--     since    time (ms) at which the rule began to count; 0 if it has counted for its whole window
--     used     how much of the maximum is used; in mode T this includes the cost of the taking
--     reset    ms until the oldest counted cost expires; 0 if nothing is used
-- If the cost is refused, a list of 6 numbers:
--     verdict  REFUSED (takes.lua)
--     since, used, reset  as above
--     wait     ms until the window allows the cost
--     0        without meaning: it makes the number of elements even. By the even number takes.go
--              distinguishes this reply from a reply of take.lua, which has an odd number of elements
-- Invariants: as in take.lua.

repeat
  -- ARGV[5] exists only if the call has a second taking or a second item (a rule and a subject). ARGV[3] is
  -- the number of keys: 2 for one item, 3 for one item and an id. Only one taking with one item can be
  -- answered here.
  if ARGV[5] or ARGV[3] ~= '2' and ARGV[3] ~= '3' then
    break
  end
  -- The pattern matches "kind cap longest max per" of a rule with one sliding window: at most max in per ms.
  -- With one window, cap equals max, and longest equals per, so %2 and %3 match.
  local kind, max, per = string.match(ARGV[4], '^([PL]) (%d+) (%d+) %2 %3$')
  if not kind then
    break
  end
  local call = redis.call
  local sub = string.sub
  local rule = KEYS[1]
  local subject = KEYS[2]
  local id = KEYS[3]
  local packed = nil
  local state = call('GET', rule)
  -- take.lua must answer if the rule has not begun to count in this epoch of Redis (a period without loss of
  -- data). Mode P may write nothing, and only take.lua can look up an id without a write.
  if not state or sub(state, 27) ~= ARGV[1] or id and MODE == 'P' then
    break
  end
  local t = call('TIME')
  -- The current time in ms, as a text: the seconds t[1] and the first 3 of the 6 digits of the microseconds
  -- t[2].
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  -- take.lua must answer if the key of the rule must be written again to renew its TTL, or if the rule began
  -- to count in the future because the clock of Redis was set back.
  if sub(state, 14, 26) < at or sub(state, 1, 13) > at then
    break
  end
  local now = tonumber(at)
  local cost = tonumber(ARGV[2])
  local window = tonumber(per)
  local used = 0
  local oldest = nil
  local window_start = now - window
  if kind == 'P' then
    packed = redis.pcall('GET', subject) or ''
    -- take.lua must answer if the times of the subject are stored as a list (then GET returns an error, not a
    -- text), or if the newest time is in the future because the clock of Redis was set back.
    if type(packed) ~= 'string' or sub(packed, 1, 13) > at then
      break
    end
    -- The oldest times are at the end of the text. The loop removes expired times from the end: `used` is the
    -- length of the text without them.
    used = #packed
    while used > 0 do
      oldest = tonumber(sub(packed, used - 12, used))
      if oldest > window_start then
        break
      end
      used = used - 13
      oldest = nil
    end
    if used < #packed then
      packed = sub(packed, 1, used)
    end
    used = used / 13
  else
    used = redis.pcall('LLEN', subject)
    -- take.lua must answer if the times of the subject are stored as one text (then LLEN returns an error,
    -- not a number), or if the cost needs more than 8 LPUSH commands.
    if type(used) ~= 'number' or cost > 8 then
      break
    end
    if used > 0 then
      if call('LINDEX', subject, '0') > at then
        break
      end
      oldest = tonumber(call('LINDEX', subject, '-1'))
      -- Mode T (take) deletes up to 4 expired times. If more times have expired, take.lua must answer.
      for _ = 1, MODE == 'T' and 4 or 0 do
        if not oldest or oldest > window_start then
          break
        end
        call('RPOP', subject)
        used = used - 1
        oldest = tonumber(call('LINDEX', subject, '-1') or nil)
      end
      if oldest and oldest <= window_start then
        break
      end
    end
  end

  local wait = 0
  local is_allowed = used + cost <= tonumber(max)
  -- SET with NX records the id of an allowed taking (a request to a limit set) and shows whether Redis has
  -- the id already. If it has, this call is a repetition, and take.lua must answer.
  if id and MODE == 'T' then
    local id_exists
    if is_allowed then
      id_exists = not call('SET', id, at .. '|' .. ARGV[2] .. '|0', 'NX', 'PX', '600000')
    else
      id_exists = call('GET', id)
    end
    if id_exists then
      break
    end
  end
  if not is_allowed then
    -- The window allows the cost as soon as its n-th newest time has expired.
    local n = max - cost + 1
    if packed then
      n = sub(packed, 13 * n - 12, 13 * n)
    else
      n = call('LINDEX', subject, string.format('%d', n - 1))
    end
    wait = n + window - now
  elseif MODE == 'T' then
    if packed then
      call('SET', subject, (cost == 1 and at or string.rep(at, cost)) .. packed, 'PX', per)
    else
      for _ = 1, cost do
        call('LPUSH', subject, at)
      end
      call('PEXPIRE', subject, per)
    end
    used = used + cost
    oldest = oldest or now
  end
  local since = tonumber(sub(state, 1, 13))
  since = since > window_start and since or 0
  if is_allowed then
    return { ALLOWED, since, used, oldest and oldest + window - now or 0 }
  end
  return { REFUSED, since, used, oldest + window - now, wait, 0 }
until true
