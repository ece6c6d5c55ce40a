-- quick_take: a shortcut in front of take.lua for the most frequent call: one taking of one sliding
-- window. At a `break`, take.lua serves the call as if this file did not exist. The number of Redis
-- commands determines the duration of this script, so each path uses as few as possible.
--
-- KEYS     as in takes.lua
-- ARGV     as in take.lua
-- Returns  a list of 4 numbers if the cost is allowed:
--     verdict  ALLOWED (takes.lua)
--     since    time (ms) since which the rule counts; 0 if it has counted for the whole window
--     used     how much of the maximum is used, including this cost in mode T
--     reset    ms until a part of `used` ends; 0 if nothing is used
-- a list of 6 numbers if the cost is refused:
--     verdict  REFUSED
--     since, used, reset  as above
--     wait     ms until the cost is allowed
--     0        makes the number of elements even: the replies of take.lua have an odd number
-- Invariants: as in take.lua.

repeat
  -- More than one taking, or more than one item: 2 keys are one item, 3 keys are one item and an
  -- id.
  if ARGV[5] or ARGV[3] ~= '2' and ARGV[3] ~= '3' then
    break
  end
  -- The spec of a rule with one window repeats cap as max and longest as per.
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
  -- The rule does not count yet in this epoch, or an id must be read without a write.
  if not state or sub(state, 27) ~= ARGV[1] or id and MODE == 'P' then
    break
  end
  local t = call('TIME')
  -- The first three of six digits of the microseconds are the milliseconds.
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  -- The key of the rule must be renewed, or the clock was set back.
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
    -- The subject is a list, or the clock was set back.
    if type(packed) ~= 'string' or sub(packed, 1, 13) > at then
      break
    end
    -- Skip expired times from the end, which are the oldest.
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
    -- The subject is packed, or the cost needs too many commands.
    if type(used) ~= 'number' or cost > 8 then
      break
    end
    if used > 0 then
      if call('LINDEX', subject, '0') > at then
        break
      end
      oldest = tonumber(call('LINDEX', subject, '-1'))
      -- Delete up to 4 expired times. If more times have expired, take.lua serves the call.
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
  -- If the id exists already, take.lua serves the call.
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
    -- The cost is allowed when the n-th newest time leaves the window.
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
