-- Makes a parked report the newest of its device, and tells the replica that
-- parked the one before.
--
-- KEYS[1]  of the device: "number replica" of its newest; "number -" when that
--          one's connection has ended (gone.lua)
-- ARGV[1]  this replica    ARGV[2]  ms to remember    ARGV[3]  channel    ARGV[4]  the device
--
-- Returns the number, as text, and 1 after a connection that ended just now, else
-- 0. Numbers rise also when Redis forgot the last one: they are the time in
-- microseconds, or more.
local time = redis.call('TIME')
local number = tonumber(time[1]) * 1000000 + tonumber(time[2])
local before = redis.call('GET', KEYS[1])
local replica = ARGV[1]
if before then
  local last
  last, replica = string.match(before, '^(%d+) (.+)$')
  number = math.max(number, tonumber(last) + 1)
end
local text = string.format('%.0f', number)
redis.call('SET', KEYS[1], text .. ' ' .. ARGV[1], 'PX', ARGV[2])
if replica ~= ARGV[1] and replica ~= '-' then
  redis.call('PUBLISH', ARGV[3], 'newer ' .. text .. ' ' .. ARGV[4])
end
return { text, replica == '-' and 1 or 0 }
