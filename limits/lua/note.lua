-- note: adds numbers of refused starts of tasks to the counts in Redis. top.lua reads these counts to find the
-- subjects (for example accounts) with the most refusals.
--
-- KEYS[1]  ZSET  label -> number of refusals in the latest hour with an even number
-- KEYS[2]  ZSET  label -> number of refusals in the latest hour with an odd number
-- KEYS[3]  number of the hour (since 1970) of the latest refusal
-- ARGV[1]  maximum number of labels in each ZSET. A label names a policy and one of its subjects
-- ARGV[2...]  pairs: a label, then the number of refusals to add
-- Returns  1
--
-- Invariant: the count of a stored label is never too low, but it can be too high. If the ZSET is full, a new
-- label replaces the label with the lowest count, and its own count begins at this lowest count.

local max_labels = tonumber(ARGV[1])
if not max_labels then
  error('limits: bad number')
end
local hour = math.floor(tonumber(redis.call('TIME')[1]) / 3600)
local last_hour = tonumber(redis.call('GET', KEYS[3]) or nil)
local top = KEYS[1 + hour % 2]
-- The first refusal of an hour deletes the ZSET `top`, whose counts are at least two hours old. If the previous
-- hour had no refusal, the counts in the other ZSET are too old, too, so it is also deleted.
if last_hour ~= hour then
  redis.call('DEL', top)
  if last_hour ~= hour - 1 then
    redis.call('DEL', KEYS[2 - hour % 2])
  end
  redis.call('SET', KEYS[3], hour, 'PX', 7200000)
end
for i = 2, #ARGV, 2 do
  local inherited = 0
  if redis.call('ZCARD', top) >= max_labels and not redis.call('ZSCORE', top, ARGV[i]) then
    inherited = tonumber(redis.call('ZPOPMIN', top)[2])
  end
  redis.call('ZINCRBY', top, string.format('%.0f', inherited + ARGV[i + 1]), ARGV[i])
end
redis.call('PEXPIRE', top, 7200000)
return 1
