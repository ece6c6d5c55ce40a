-- slide: functions over sliding windows for take.lua. scripts.go puts this file after common.lua. A
-- subject can be packed or a list, whatever the kind of its spec is, because a change of the maximum
-- changes the kind of the spec but not the subject. An item is a table:
--     rule, key  key of the rule, key of the subject
--     spec       the table that read_spec returns
--     packed     packed times; nil if the subject is a list
--     n          number of stored times
--     inside     number of times in each window (take.lua, judge)

-- load_times: reads the subject of the item, in either form, and sets item.packed and item.n.
local function load_times(item)
  local packs = item.spec.kind == 'P'
  local got = redis.pcall(packs and 'GET' or 'LLEN', item.key)
  -- The reply is an error: the subject has the other form.
  if type(got) == 'table' then
    got = redis.call(packs and 'LLEN' or 'GET', item.key)
  end
  if type(got) == 'number' then
    item.n = got
    item.packed = nil
  else
    item.packed = got or ''
    item.n = #item.packed / DIGITS
  end
end

-- nth_of: returns the time (ms) of the n-th newest entry of the item.
local function nth_of(item, n)
  return nth(item.packed, item.key, n)
end

-- inside: returns the number of times that are later than edge, by binary search. In most calls all
-- times are later, because older times are deleted, so the oldest time is compared first.
local function inside(item, edge)
  local low = 0
  local high = item.n
  if high == 0 or nth_of(item, high) > edge then
    return high
  end
  while high - low > 1 do
    local middle = math.floor((low + high) / 2)
    if nth_of(item, middle) > edge then
      low = middle
    else
      high = middle
    end
  end
  return low
end

-- push: adds the time `now` n times to the head of a list, at most 1000 times in one command.
local function push(key, now, n)
  local many = {}
  for i = 1, math.min(n, 1000) do
    many[i] = text(now)
  end
  for left = n, 1, -1000 do
    redis.call('LPUSH', key, unpack(many, 1, math.min(left, 1000)))
  end
end

-- keep: deletes all but the newest n times, and converts the subject to the form of the spec. The
-- packed form is only set in item.packed; `add` writes it.
local function keep(item, n)
  local s = item.spec
  local key = item.key
  local packed = item.packed and string.sub(item.packed, 1, DIGITS * n)
  if s.kind == 'P' then
    if not packed then
      local words = {}
      for i, t in ipairs(n > 0 and redis.call('LRANGE', key, 0, text(n - 1)) or {}) do
        words[i] = word(tonumber(t))
      end
      packed = table.concat(words)
    end
    item.packed = packed
  elseif packed then
    redis.call('DEL', key)
    for i = 1, n do
      redis.call('RPUSH', key, text(nth(packed, key, i)))
    end
    item.packed = nil
  elseif n == 0 then
    redis.call('DEL', key)
  elseif n < item.n then
    redis.call('LTRIM', key, 0, text(n - 1))
  end
  item.n = n
end

-- add: records the time `now` n times in addition to the stored times, and renews the TTL.
local function add(item, now, n)
  local s = item.spec
  local key = item.key
  if s.kind == 'P' then
    item.packed = string.rep(word(now), n) .. item.packed
    redis.call('SET', key, item.packed, 'PX', text(s.longest))
  else
    push(key, now, n)
    redis.call('PEXPIRE', key, text(s.longest))
  end
  item.n = item.n + n
end

-- mend: replaces times in the future by `now` and writes the subject. Such times exist after the
-- clock was set back; without mend they would block the subject until the clock reaches them.
local function mend(item, now)
  if item.n == 0 or nth_of(item, 1) <= now then
    return
  end
  local ahead = inside(item, now)
  if item.packed then
    item.packed = string.rep(word(now), ahead) .. string.sub(item.packed, DIGITS * ahead + 1)
    return redis.call('SET', item.key, item.packed, 'PX', text(item.spec.longest))
  end
  redis.call('LTRIM', item.key, text(ahead), -1)
  push(item.key, now, ahead)
  redis.call('PEXPIRE', item.key, text(item.spec.longest))
end

-- slide: counts a cost of n at the time `now`. It deletes the times that are in no window any more
-- and increases item.inside.
local function slide(item, now, n)
  local most = 0
  local s = item.spec
  for i = 1, s.windows do
    most = math.max(most, item.inside[i])
  end
  keep(item, most)
  add(item, now, n)
  for i = 1, s.windows do
    item.inside[i] = item.inside[i] + n
  end
end

-- unslide: deletes at most n entries with the time `when` from the subject and writes the subject.
local function unslide(item, when, n)
  load_times(item)
  if not item.packed then
    return redis.call('LREM', item.key, text(n), text(when))
  end
  local words = {}
  local gone = word(when)
  for i = 1, item.n do
    local one = string.sub(item.packed, DIGITS * i - DIGITS + 1, DIGITS * i)
    if one == gone and n > 0 then
      n = n - 1
    else
      words[#words + 1] = one
    end
  end
  if #words == 0 then
    return redis.call('DEL', item.key)
  end
  redis.call('SET', item.key, table.concat(words), 'PX', text(item.spec.longest))
end
