-- top: what was refused in this hour and the one before.
-- KEYS     note.lua
-- ARGV     at most how many of each
-- Returns  label, how often, ...: of this hour, then of the one before
local most = tonumber(ARGV[1])
if not most then
  error('limits: bad number')
end
local hour = math.floor(tonumber(redis.call('TIME')[1]) / 3600)
local last = tonumber(redis.call('GET', KEYS[3]) or nil)
local reply = {}
for h = hour, hour - 1, -1 do
  if last and last >= h and last - h < 2 then
    for _, word in ipairs(redis.call('ZREVRANGE', KEYS[1 + h % 2], 0, most - 1, 'WITHSCORES')) do
      reply[#reply + 1] = word
    end
  end
end
return reply
