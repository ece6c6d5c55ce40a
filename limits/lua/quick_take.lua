-- quick_take: what is asked most is one taking of one sliding window. As quick.lua is to reserve.lua, so is this to
-- take.lua. Its cost is mostly the number of calls of Redis.
-- KEYS, ARGV and what is kept: as take.lua. Returns  of the one item: verdict, since when it is counted,
-- used, ms until something of that ends; and if it is refused: ms until the cost is allowed, 0
repeat
  if ARGV[5] or ARGV[3] ~= '2' and ARGV[3] ~= '3' then
    break
  end
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
  if not state or sub(state, 27) ~= ARGV[1] or id and MODE == 'P' then
    break
  end
  local t = call('TIME')
  -- us to ms
  local at = t[1] .. sub('00000' .. t[2], -6, -4)
  if sub(state, 14, 26) < at or sub(state, 1, 13) > at then
    break
  end
  local now = tonumber(at)
  local cost = tonumber(ARGV[2])
  local window = tonumber(per)
  local used = 0
  local oldest = nil
  local edge = now - window
  if kind == 'P' then
    packed = redis.pcall('GET', subject) or ''
    if type(packed) ~= 'string' or sub(packed, 1, 13) > at then
      break
    end
    used = #packed
    while used > 0 do
      oldest = tonumber(sub(packed, used - 12, used))
      if oldest > edge then
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
    if type(used) ~= 'number' or cost > 8 then
      break
    end
    if used > 0 then
      if call('LINDEX', subject, '0') > at then
        break
      end
      oldest = tonumber(call('LINDEX', subject, '-1'))
      -- more than were added since, so that this keeps up
      for _ = 1, MODE == 'T' and 4 or 0 do
        if not oldest or oldest > edge then
          break
        end
        call('RPOP', subject)
        used = used - 1
        oldest = tonumber(call('LINDEX', subject, '-1') or nil)
      end
      if oldest and oldest <= edge then
        break
      end
    end
  end

  local wait = 0
  local open = used + cost <= tonumber(max)
  if id and MODE == 'T' then
    local known
    if open then
      known = not call('SET', id, at .. '|' .. ARGV[2] .. '|0', 'NX', 'PX', '600000')
    else
      known = call('GET', id)
    end
    if known then
      break
    end
  end
  if not open then
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
  since = since > edge and since or 0
  if open then
    return { ALLOWED, since, used, oldest and oldest + window - now or 0 }
  end
  return { REFUSED, since, used, oldest + window - now, wait, 0 }
until true
