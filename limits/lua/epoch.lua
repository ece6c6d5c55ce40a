-- epoch: makes rules (rate limits) unknown if their counts come from another epoch. An epoch is a period in
-- which Redis lost no data. Counts of another epoch may lack starts, so such a rule must be filled again
-- (fill.lua). A process that began to fill a rule in another epoch cannot continue.
--
-- KEYS     the keys of rules (keys.lua)
-- ARGV[1]  the current epoch
-- Returns  the number of rules that became unknown

local dropped = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  -- The first pattern finds the epoch in the state of a known rule ("known|time|epoch"). The second finds it
  -- in the state of a rule that a process fills ("filling|time|epoch~token").
  local epoch = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if epoch and epoch ~= ARGV[1] then
    dropped = dropped + redis.call('DEL', rule)
  end
end
return dropped
