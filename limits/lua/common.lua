-- common: functions that parse the specs of rules (texts that describe rate limits; see keys.lua), and that
-- read and write the counts of subjects.

-- Cache of read_spec: text of a spec -> its table. Most items of a call have the same specs.
local specs = {}

-- read_spec: parses `line`, the spec of a rule. It returns the spec table below, or ends the script with an
-- error if the spec is invalid.
--  kind     S (sliding windows), F (fixed window) or C (calendar)
--  longest  ms after which a start has no effect on the rule
--  cap      only for S: maximum number of stored starts of a subject
--  windows  only for S: number of windows
--  max      only for S: list with the maximum number of starts of each window
--  per      only for S: list with the length of each window in ms
--  most     only for F and C: maximum number of starts in the window or period
--  starts   only for C: the times (ms) at which the calendar periods start
local function read_spec(line)
  if specs[line] then
    return specs[line]
  end
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = tonumber(word) or word
  end
  local s = { kind = words[1] }
  if s.kind == 'S' then
    check(#words > 4 and #words % 2 == 1, 'spec')
    s.cap = words[2]
    s.longest = words[3]
    s.windows = (#words - 3) / 2
    s.max = {}
    s.per = {}
    for i = 1, s.windows do
      s.max[i] = words[2 * i + 2]
      s.per[i] = words[2 * i + 3]
    end
  elseif s.kind == 'F' then
    check(#words == 3, 'spec')
    s.most = words[2]
    s.longest = words[3]
  else
    check(s.kind == 'C' and #words > 4, 'spec')
    s.most = words[2]
    s.longest = words[3]
    s.starts = { unpack(words, 4) }
  end
  specs[line] = s
  return s
end

-- read_rule_state: reads the state of a rule from `rule`, the Redis key of the rule. It returns the state
-- ("filling", "settling" or "known") and the time (ms) at which the state was written. If the key is missing,
-- it returns nil.
local function read_rule_state(rule)
  local value = redis.call('GET', rule)
  if not value then
    return nil
  end
  local state, written_at = string.match(value, '^(%a+)|(%d+)')
  return state, tonumber(written_at)
end

-- period_containing: returns the start and the end (ms) of the calendar period that contains the time `at`
-- (ms), or nil if s, the spec table of the rule, has no such period.
local function period_containing(s, at)
  for i = 1, #s.starts - 1 do
    if at >= s.starts[i] and at < s.starts[i + 1] then
      return s.starts[i], s.starts[i + 1]
    end
  end
end

-- read_count: reads `key`, the Redis key of a subject of a rule with a fixed window (F) or calendar periods (C).
-- It returns the time (ms) at which the window or period began, and the number of task starts in it. If the key
-- is missing, it returns nil.
local function read_count(key)
  local window_start, n = string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)$')
  return tonumber(window_start), tonumber(n)
end

-- write_count: writes to `key` the two values that read_count returns: window_start (ms) and n, the number of
-- task starts. s is the spec table of the rule. The key expires when the count has no effect any more.
local function write_count(s, key, window_start, n, now)
  local ttl = math.max(window_start + s.longest - now, 1)
  redis.call('SET', key, text(window_start) .. '|' .. text(n), 'PX', text(ttl))
end
