-- epoch: makes rules unknown that were filled in another epoch of Redis. Data from another epoch can
-- lack starts that were counted after it was written. A filling that began in another epoch ends too.
--
-- KEYS     the keys of rules (keys.lua)
-- ARGV[1]  the current epoch
-- Returns  the number of rules that became unknown

local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  -- The epoch of a known rule, or of a rule that is being filled.
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
