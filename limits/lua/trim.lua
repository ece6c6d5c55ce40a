-- trim: a function for the lists of starts. scripts.go puts this file in front of quick_settle.lua.

-- trim_list: deletes times from the end of the list `key` that have no effect any more, and renews
-- the TTL of the list. length is the number of times in the list. At most cap times stay. longest
-- is the TTL in ms, a text; cap may be a text too. Returns nothing.
local function trim_list(cap, longest, key, now, length)
  if length > tonumber(cap) then
    redis.call('LTRIM', key, '0', string.format('%d', cap - 1))
  elseif length % 4 == 0 then
    -- Every fourth start deletes up to 8 expired times: more than were added since the previous
    -- deletion, so expired times do not accumulate.
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
