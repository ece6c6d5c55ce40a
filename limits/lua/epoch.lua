-- epoch: deletes the states of rules that were filled in another epoch of Redis. Redis may have lost data
-- between two epochs, so the stored counts can lack starts. A rule without a state is unknown and must
-- be filled again. If a process began to fill a rule in another epoch, it cannot continue.
--
-- KEYS     the keys of rules (keys.lua)
-- ARGV[1]  the current epoch
-- Returns  the number of rules that became unknown

local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  -- The epoch in the state of the rule. The first pattern matches a known rule, the second pattern a rule
  -- that a process is filling.
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
