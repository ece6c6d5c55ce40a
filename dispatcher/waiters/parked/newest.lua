-- newest: records that the report which a replica parks now is the newest report of its device. If another
-- replica parked the previous report, the script sends a message to that replica, which may not know yet that
-- the connection of the previous report is dead.
--
-- KEYS[1]  the newest report of the device, as text: "number replica", the number of the report and the
--          replica that parked it. After the connection of this report has ended: "number -" (gone.lua)
-- ARGV[1]  name of the replica that parks the report now
-- ARGV[2]  TTL of KEYS[1] in ms
-- ARGV[3]  channel for messages between replicas
-- ARGV[4]  name of the device
-- Returns  a list of two values:
--     number  number of this report, as text
--     gap     1 if gone.lua recorded that the connection of the previous report ended, and the TTL of this
--             record is not over; otherwise 0
--
-- Invariant: the number of a report is at least its time in microseconds, so later reports of a device have
-- higher numbers even if Redis loses KEYS[1].

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
