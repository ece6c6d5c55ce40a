-- newest: makes a parked report the newest report of its device, and notifies the replica that parked
-- the previous report.
--
-- KEYS[1]  "number replica" of the newest report of the device; "number -" after the connection of
--          the newest report has ended (gone.lua)
-- ARGV[1]  this replica
-- ARGV[2]  TTL of KEYS[1] in ms
-- ARGV[3]  channel of the messages between replicas
-- ARGV[4]  the device
-- Returns  a list of two values:
--     number  number of this report, a text
--     gap     1 if the connection of the previous report ended within the TTL set by gone.lua; else 0
--
-- Invariant: the numbers increase even if Redis loses KEYS[1], because a number is at least the time
-- in microseconds.

local time = redis.call('TIME')
local number = tonumber(time[1]) * 1000000 + tonumber(time[2])
local previous = redis.call('GET', KEYS[1])
local replica = ARGV[1]
if previous then
  local previous_number
  previous_number, replica = string.match(previous, '^(%d+) (.+)$')
  number = math.max(number, tonumber(previous_number) + 1)
end
local number_text = string.format('%.0f', number)
redis.call('SET', KEYS[1], number_text .. ' ' .. ARGV[1], 'PX', ARGV[2])
if replica ~= ARGV[1] and replica ~= '-' then
  redis.call('PUBLISH', ARGV[3], 'newer ' .. number_text .. ' ' .. ARGV[4])
end
return { number_text, replica == '-' and 1 or 0 }
