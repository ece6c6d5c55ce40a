-- epoch: deletes the keys of rules (rate limits) whose counts come from another epoch. An epoch is a period in
-- which Redis lost no data. Counts of another epoch may lack starts. A rule without a key is unknown and must
-- be filled again (fill.lua).
--
-- KEYS     the keys of rules (keys.lua)
-- ARGV[1]  the current epoch
-- Returns  the number of rules that became unknown

local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  -- The states are "known|time|epoch" and "filling|time|epoch~token" (keys.lua).
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
