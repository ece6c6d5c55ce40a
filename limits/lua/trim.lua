-- trim keeps of a list of so many times (ms, a text) what can still matter. The cap may be a
-- text, too.
local function trim(cap, longest, key, now, length)
  if length > tonumber(cap) then
    redis.call('LTRIM', key, '0', string.format('%d', cap - 1))
  elseif length % 4 == 0 then
    -- more than were added since, so that this keeps up
    for _ = 1, 8 do
      local last = tonumber(redis.call('LINDEX', key, '-1') or nil)
      if not last or last > now - longest then
        break
      end
      redis.call('RPOP', key)
    end
  end
  redis.call('PEXPIRE', key, longest)
end
