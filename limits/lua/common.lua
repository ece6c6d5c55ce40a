-- common: functions that parse the specs of rules (texts that describe rate limits), and that read and write
-- the counts of subjects. keys.lua describes the three kinds of rules (S: sliding windows, F: fixed window,
-- C: calendar). scripts.go puts this file after times.lua, and after base.lua if the script uses
-- base.lua.

-- Cache of read_spec during one call of the script: spec -> table. Most items of a call have the same specs.
local specs = {}

-- read_spec: parses `line`, the spec of a rule (a text that describes a rate limit, keys.lua). If the spec is
-- invalid, the script ends with an error. Returns a table:
--   kind     S (sliding windows), F (fixed window) or C (calendar)
--   longest  ms after which a start has no effect on the rule
--   Only for the kind S, else nil:
--   cap      maximum number of stored starts of a subject
--   windows  number of windows
--   max      list: maximum number of starts in each window
--   per      list: length of each window in ms
--   Only for the kinds F and C, else nil:
--   most     maximum number of starts in the window or period
--   Only for the kind C, else nil:
--   starts   list: the times (ms) at which the calendar periods start
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

-- read_rule_state: reads `rule`, the Redis key of a rule. Returns its state ("filling", "settling" or
-- "known") and the time (ms) at which the state was written. If Redis does not know the rule, it returns nil.
local function read_rule_state(rule)
  local value = redis.call('GET', rule)
  if not value then
    return nil
  end
  local state, written_at = string.match(value, '^(%a+)|(%d+)')
  return state, tonumber(written_at)
end

-- period_containing: returns the start and the end (ms) of a calendar period of the rule: the period that
-- contains the time `at` (ms). s is the spec table of the rule. If the spec has no such period, it returns
-- nil.
local function period_containing(s, at)
  for i = 1, #s.starts - 1 do
    if at >= s.starts[i] and at < s.starts[i + 1] then
      return s.starts[i], s.starts[i + 1]
    end
  end
end

-- read_count: reads the count of one subject of a rule with a fixed window (F) or calendar periods (C). key
-- is the Redis key of the subject. Returns the start (ms) of the window or period that was counted last, and
-- its number of starts. If there is no count, it returns nil.
local function read_count(key)
  local window_start, n = string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)$')
  return tonumber(window_start), tonumber(n)
end

-- write_count: stores the count of one subject of a rule with a fixed window (F) or calendar periods (C). s
-- is the spec table of the rule, key the Redis key of the subject. window_start is the start (ms) of the
-- window or period, and n its number of starts. The key expires as soon as the count has no effect any more.
local function write_count(s, key, window_start, n, now)
  local ttl = math.max(window_start + s.longest - now, 1)
  redis.call('SET', key, text(window_start) .. '|' .. text(n), 'PX', text(ttl))
end
