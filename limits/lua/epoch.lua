-- epoch: deletes the states of rules (rate limits) whose counts were copied to Redis in another epoch. A new
-- epoch of Redis begins when Redis may have lost data, so counts from another epoch can lack starts. A rule
-- without a state is unknown and must be filled again. A process that began to fill a rule in another epoch
-- cannot continue.
--
-- KEYS     the keys of rules (keys.lua)
-- ARGV[1]  the current epoch
-- Returns  the number of rules that became unknown

local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  -- epoch is the epoch that the state of the rule contains. The first pattern matches the state of a known
  -- rule, the second pattern the state of a rule that a process is filling.
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
