-- top: returns the subjects (for example accounts) with the most refused starts of tasks, in the current and
-- in the previous hour.
--
-- KEYS     as in note.lua
-- ARGV[1]  maximum number of labels for each hour. A label names a policy and one of its subjects
-- Returns  a list of pairs: a label, then its number of refusals, highest number first. All pairs of the
--          current hour precede the pairs of the previous hour

local max_labels = tonumber(ARGV[1])
if not max_labels then
  error('limits: bad number')
end
local hour = math.floor(tonumber(redis.call('TIME')[1]) / 3600)
local last_hour = tonumber(redis.call('GET', KEYS[3]) or nil)
local reply = {}
for h = hour, hour - 1, -1 do
  -- One ZSET is for even hours, the other for odd hours. The ZSET of hour h still has the counts of hour h if
  -- the latest refusal was in hour h or in the hour after it.
  if last_hour and last_hour >= h and last_hour - h < 2 then
    for _, value in ipairs(redis.call('ZREVRANGE', KEYS[1 + h % 2], 0, max_labels - 1, 'WITHSCORES')) do
      reply[#reply + 1] = value
    end
  end
end
return reply
