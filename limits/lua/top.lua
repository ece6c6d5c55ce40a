-- top: what was refused in this hour and the one before.
-- KEYS     base.lua
-- ARGV     at most how many of each
-- Returns  label, how often, ...: of this hour, then of the one before
local most = tonumber(ARGV[1])
check(most, 'number')
local hour = math.floor(now_ms() / 3600000)
local last = tonumber(redis.call('GET', HOUR) or nil)
local reply = {}
for h = hour, hour - 1, -1 do
  if last and last >= h and last - h < 2 then
    for _, word in ipairs(redis.call('ZREVRANGE', KEYS[4 + h % 2], 0, most - 1, 'WITHSCORES')) do
      reply[#reply + 1] = word
    end
  end
end
return reply
