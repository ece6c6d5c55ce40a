-- Functions of the scripts that know all kinds of rules; this follows base.lua.

local specs = {}

-- read_spec reads the spec of a rule, once in a call.
local function read_spec(line)
  if specs[line] then
    return specs[line]
  end
  local n = {}
  for word in string.gmatch(line, '%S+') do
    n[#n + 1] = tonumber(word) or word
  end
  local s = { kind = n[1] }
  if s.kind == 'P' or s.kind == 'L' then
    check(#n > 4 and #n % 2 == 1, 'spec')
    s.cap = n[2]
    s.longest = n[3]
    s.windows = (#n - 3) / 2
    s.max = {}
    s.per = {}
    for i = 1, s.windows do
      s.max[i] = n[2 * i + 2]
      s.per[i] = n[2 * i + 3]
    end
  elseif s.kind == 'F' then
    check(#n == 3, 'spec')
    s.most = n[2]
    s.longest = n[3]
  else
    check(s.kind == 'C' and #n > 4, 'spec')
    s.most = n[2]
    s.longest = n[3]
    s.starts = { unpack(n, 4) }
  end
  specs[line] = s
  return s
end

-- state of a rule, and since when (ms) it is in it.
local function state_of(rule)
  local value = redis.call('GET', rule)
  if not value then
    return nil
  end
  local state, at = string.match(value, '^(%a+)|(%d+)')
  return state, tonumber(at)
end

-- period finds where the period around a time begins and ends, if it is known.
local function period(s, at)
  for i = 1, #s.starts - 1 do
    if at >= s.starts[i] and at < s.starts[i + 1] then
      return s.starts[i], s.starts[i + 1]
    end
  end
end

-- read_count reads a subject that only counts.
local function read_count(key)
  local since, n = string.match(redis.call('GET', key) or '', '^(%d+)|(%d+)$')
  return tonumber(since), tonumber(n)
end

-- write_count keeps a count until nothing depends on it.
local function write_count(s, key, since, n, now)
  local ttl = math.max(since + s.longest - now, 1)
  redis.call('SET', key, text(since) .. '|' .. text(n), 'PX', text(ttl))
end

-- packed_of are the packed times of a subject that has such.
local function packed_of(s, key)
  return s.kind == 'P' and (redis.call('GET', key) or '') or nil
end
