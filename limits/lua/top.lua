-- top: returns the most refused subjects of the current and the previous hour.
--
-- KEYS     as in note.lua
-- ARGV[1]  maximum number of labels for each hour
-- Returns  a list: label, number of refusals; repeated, first for the current hour, then for the
--          previous hour

local most = tonumber(ARGV[1])
if not most then
  error('limits: bad number')
end
local hour = math.floor(tonumber(redis.call('TIME')[1]) / 3600)
local last = tonumber(redis.call('GET', KEYS[3]) or nil)
local reply = {}
for h = hour, hour - 1, -1 do
  -- The ZSET of hour h contains numbers of hour h only if the latest refusal was then or one hour
  -- later.
  if last and last >= h and last - h < 2 then
    for _, word in ipairs(redis.call('ZREVRANGE', KEYS[1 + h % 2], 0, most - 1, 'WITHSCORES')) do
      reply[#reply + 1] = word
    end
  end
end
return reply
