-- epoch: a rule is known only in the epoch of Redis in which it was filled: what another epoch left may be older than
-- what was counted
-- since. A filling that was begun in another epoch does not go on either.
-- KEYS     rules
-- ARGV     the epoch
-- Returns  how many are not known any more
local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
