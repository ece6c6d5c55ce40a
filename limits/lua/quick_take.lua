-- quick_take: what is asked most is one taking of one sliding window. As quick.lua is to reserve.lua, so is this to
-- take.lua. What it costs is mostly the number of calls of Redis.
-- KEYS, ARGV and what is kept: as take.lua. Returns  as take.lua
repeat
  if ARGV[4] ~= '1' or ARGV[6] then break end
  local kind, max, per = string.match(ARGV[5], '^([PL]) (%d+) (%d+) %2 %3$')
  if not kind then break end
  local call, sub, rule, subject, id, state = redis.call, string.sub, KEYS[1], KEYS[2], KEYS[3], nil
  if id then
    local both = call('MGET', rule, id)
    if both[2] then break end
    state = both[1]
  else
    state = call('GET', rule)
  end
  if not state or sub(state, 2 * DIGITS + 1) ~= ARGV[1] then break end
  local t = call('TIME')
  local at = t[1] .. sub('00000' .. t[2], -6, -4) -- us to ms
  local now, cost, since = tonumber(at), tonumber(ARGV[3]), tonumber(sub(state, 1, DIGITS))
  if since > now or now - sub(state, DIGITS + 1, 2 * DIGITS) > RENEW then break end
  local used, oldest, packed, edge = 0, nil, nil, now - per
  if kind == 'P' then
    packed = redis.pcall('GET', subject) or ''
    if type(packed) ~= 'string' or sub(packed, 1, DIGITS) > at then break end
    used, edge = #packed / DIGITS, string.format('%013.0f', edge)
    while used > 0 and sub(packed, DIGITS * used - DIGITS + 1, DIGITS * used) <= edge do used = used - 1 end
    if used > 0 then oldest = tonumber(sub(packed, DIGITS * used - DIGITS + 1, DIGITS * used)) end
  else
    used = redis.pcall('LLEN', subject)
    if type(used) ~= 'number' or cost > 8 then break end
    if used > 0 then
      if tonumber(call('LINDEX', subject, '0')) > now then break end
      oldest = tonumber(call('LINDEX', subject, '-1'))
      for _ = 1, MODE == 'T' and 4 or 0 do -- more than were added since, so that this keeps up
        if not oldest or oldest > edge then break end
        call('RPOP', subject)
        used, oldest = used - 1, tonumber(call('LINDEX', subject, '-1') or nil)
      end
      if oldest and oldest <= edge then break end
    end
  end

  local wait, open = 0, used + cost <= tonumber(max)
  if not open then
    local n = max - cost + 1
    if packed then n = sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n) else n = call('LINDEX', subject, string.format('%d', n - 1)) end
    wait = n + per - now
  elseif MODE == 'T' then
    if packed then
      call('SET', subject, string.rep(at, cost) .. sub(packed, 1, DIGITS * used), 'PX', per)
    else
      for _ = 1, cost do call('LPUSH', subject, at) end
      call('PEXPIRE', subject, per)
    end
    if id then call('SET', id, at .. '|' .. ARGV[3] .. '|0', 'PX', REMEMBER) end
    used, oldest = used + cost, oldest or now
  end
  return { now, open and ALLOWED or REFUSED, now - since < tonumber(per) and since or 0, 0, used, oldest and oldest + per - now or 0, wait }
until true
