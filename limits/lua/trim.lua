-- trim: a function that shortens the Redis lists of the times of starts. scripts.go puts this file in front
-- of quick_settle.lua and settle.lua.

-- trim_list: deletes times that are not needed from the list `key` after a start was added, and renews its
-- TTL.
--   cap      maximum number of times that stay in the list; a number or a text
--   longest  ms after which a time has no effect any more; also the TTL of the list; a text
--   now      current time of Redis in ms
--   length   number of times in the list
local function trim_list(cap, longest, key, now, length)
  if length > tonumber(cap) then
    redis.call('LTRIM', key, '0', string.format('%d', cap - 1))
  elseif length % 4 == 0 then
    -- Each start adds one time, so at least every fourth start comes here and deletes up to 8 expired times.
    -- More times are deleted than added, so expired times do not accumulate.
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
