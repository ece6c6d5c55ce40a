-- believe: rules are believed only in the life of Redis in which they were filled: what
-- another one left may be older than what was counted since. Nor does a filling go on.
-- KEYS     rules
-- ARGV     the life
-- Returns  how many are not believed any more
local doubted = 0
for _, rule in ipairs(KEYS) do
  local value = redis.call('GET', rule) or ''
  local life = string.match(value, '^known|%d+|(.*)$') or string.match(value, '|([^|]*)~')
  if life and life ~= ARGV[1] then doubted = doubted + redis.call('DEL', rule) end
end
return doubted
