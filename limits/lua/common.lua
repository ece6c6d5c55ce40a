-- common: functions for rules of all kinds. scripts.go puts this file after times.lua, and after
-- base.lua if the script uses base.lua. The kinds of rules and the form of subjects: see keys.lua.

-- Specs that were parsed in this call: text -> table.
local specs = {}

-- read_spec: parses the spec of a rule. The script ends with an error if the spec is invalid.
-- Returns a table:
--   kind     P, L, F or C
--   longest  ms after which a start has no effect
--   Only for sliding windows (P, L):
--   cap      maximum number of starts that are kept
--   windows  number of windows; nil for other kinds
--   max      maximum number of starts, for each window
--   per      duration in ms, for each window
--   Only for F and C:
--   most     maximum number of starts; nil for other kinds
--   Only for C:
--   starts   times at which the periods start
local function read_spec(line)
  if specs[line] then
    return specs[line]
  end
  local words = {}
  for word in string.gmatch(line, '%S+') do
    words[#words + 1] = tonumber(word) or word
  end
  local s = { kind = words[1] }
  if s.kind == 'P' or s.kind == 'L' then
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

-- read_rule_state: returns the state of a rule ("filling", "settling" or "known") and the time (ms)
-- of its latest write, or nil if the rule is unknown.
local function read_rule_state(rule)
  local value = redis.call('GET', rule)
  if not value then
    return nil
  end
  local state, written_at = string.match(value, '^(%a+)|(%d+)')
  return state, tonumber(written_at)
end

-- period_containing: returns the start and the end of the calendar period that contains the time
-- `at`, or nil if the spec does not contain such a period.
local function period_containing(s, at)
  for i = 1, #s.starts - 1 do
    if at >= s.starts[i] and at < s.starts[i + 1] then
      return s.starts[i], s.starts[i + 1]
    end
  end
end

-- read_count: reads a subject of a fixed (F) or calendar (C) window. Returns the start of its
-- window and the number of starts, or nil if the subject does not exist.
local function read_count(key)
  local window_start, n = string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)$')
  return tonumber(window_start), tonumber(n)
end

-- write_count: writes a subject of kind F or C: window_start is the start of the window, n the
-- number of starts. The TTL ends when the count has no effect any more.
local function write_count(s, key, window_start, n, now)
  local ttl = math.max(window_start + s.longest - now, 1)
  redis.call('SET', key, text(window_start) .. '|' .. text(n), 'PX', text(ttl))
end

-- read_packed: returns the packed times of a subject of kind P ('' if the subject does not exist), or
-- nil for another kind.
local function read_packed(s, key)
  return s.kind == 'P' and (redis.call('GET', key) or '') or nil
end
