-- take: may these be taken?
-- KEYS     takes.lua
-- MODE     T take, P only look, R give back
-- ARGV     the epoch of Redis; per taking: cost, number of its keys; and per item: the spec
-- Returns  now (ms), and no more if no period of a calendar has this time: then nothing was done. Per taking: REFUSED,
--          ALLOWED, REPEATED or OTHER_COST, since when (ms) it is counted, 0 = all the window; and per item: window
--          (from 0), how
--          much of it is used, ms until something of that ends, ms until the cost is allowed. R: how much was given
--          back
-- Keeps    all items allow the cost, or nothing is counted. An id counts once, and with one cost:
--          of two, what was taken could not be given back exactly.
local now = clock()

local function read_item(key, spec)
  check(KEYS[key + 1] and spec, 'item')
  local item = { rule = KEYS[key], key = KEYS[key + 1], spec = read_spec(spec) }
  if item.spec.kind == 'C' then
    item.from, item.to = period(item.spec, now)
    -- else the one before is missing
    return item, item.from and (MODE ~= 'R' or item.from == item.spec.starts[2])
  end
  return item, true
end

-- read_takings reads all arguments before anything is written; nil: a calendar does not know this time.
local function read_takings()
  local takings = {}
  local i = 2
  local key = 1
  while ARGV[i] do
    local t = { cost = tonumber(ARGV[i]), items = {} }
    local n = tonumber(ARGV[i + 1])
    check(n and t.cost, 'taking')
    local has_id = n % 2 == 1
    n = math.floor(n / 2)
    for k = 1, n do
      local found
      t.items[k], found = read_item(key, ARGV[i + 1 + k])
      if not found then
        return nil
      end
      key = key + 2
    end
    if has_id then
      t.id = KEYS[key]
      key = key + 1
      check(t.id, 'id')
    end
    takings[#takings + 1] = t
    i = i + 2 + n
  end
  return takings
end

-- said is what is known of a take by its id: when it was, its cost, how much was given back.
local function said(t)
  local value = t.id and redis.call('GET', t.id)
  if not value then
    return nil
  end
  local when, cost, back = string.match(value, '^(%d+)|(%d+)|(%d+)$')
  when = tonumber(when)
  if now - when >= REMEMBER then
    return nil
  end
  return when, tonumber(cost), tonumber(back)
end

local function remember(t, when, cost, back)
  redis.call(
    'SET',
    t.id,
    text(when) .. '|' .. text(cost) .. '|' .. text(back),
    'PX',
    text(math.min(when + REMEMBER - now, REMEMBER))
  )
end

-- counts_since is since when a rule counts; nil: it begins now. due: it is to be written. A rule of starts
-- (keys.lua), of which the usage is asked, counts all or is not known.
local function counts_since(rule)
  local state = redis.call('GET', rule)
  if state and string.sub(state, 1, 6) == 'known|' then
    return 0, false
  end
  if not state or string.sub(state, 2 * DIGITS + 1) ~= ARGV[1] then
    return nil, true
  end
  return tonumber(string.sub(state, 1, DIGITS)), now > tonumber(string.sub(state, DIGITS + 1, 2 * DIGITS))
end

local function know(item)
  local since, due = counts_since(item.rule)
  item.since = math.min(since or now, now)
  if MODE == 'T' and due then
    redis.call(
      'SET',
      item.rule,
      word(item.since) .. word(now + RENEW) .. ARGV[1],
      'PX',
      text(item.spec.longest + OUTLIVE)
    )
  end
end

-- begin reads what a subject counted, before it is judged.
local function begin(item)
  know(item)
  local s = item.spec
  if s.windows then
    load_times(item)
    if MODE == 'T' then
      mend(item, now)
    end
    item.whole = now - item.since >= s.longest
    return
  end
  local since, n = read_count(item.key)
  if s.kind == 'F' then
    -- A window that begins yet is of a clock that went back.
    since = since and math.min(since, now)
    if not since or now >= since + s.longest then
      since = now
      n = 0
    end
    item.from = since
    item.to = since + s.longest
    item.used = n
    item.whole = now - item.since >= s.longest
    return
  end
  item.used = since and since >= item.from and n or 0
  item.whole = item.since <= item.from
end

-- judge says how long until the cost is allowed; 0: it is.
local function judge(item, cost)
  if item.used then
    item.wait = item.used + cost > item.spec.most and item.to - now or 0
    return item.wait
  end
  local s = item.spec
  item.wait = 0
  item.inside = {}
  for i = 1, s.windows do
    item.inside[i] = inside(item, now - s.per[i])
    if item.inside[i] + cost > s.max[i] then
      item.wait = math.max(item.wait, math.min(nth_of(item, s.max[i] - cost + 1), now) + s.per[i] - now)
    end
  end
  return item.wait
end

local function count(item, cost)
  if item.used then
    item.used = item.used + cost
    return write_count(item.spec, item.key, item.from, item.used, now)
  end
  slide(item, now, cost)
end

-- stand adds how an item stands to a reply: of what slides, the window that has least left.
local function stand(reply, item)
  local s = item.spec
  local window = 1
  local used = item.used
  local reset = 0
  if used then
    if used > 0 or s.kind == 'C' then
      reset = item.to - now
    end
  else
    local least
    for i = 1, s.windows do
      local n = item.inside[i]
      local left = s.max[i] - n
      local ends = n > 0 and math.min(nth_of(item, n), now) + s.per[i] - now or 0
      if not least or left < least or left == least and ends > reset then
        window = i
        used = n
        reset = ends
        least = left
      end
    end
  end
  local n = #reply
  reply[n + 1] = window - 1
  reply[n + 2] = used
  reply[n + 3] = reset
  reply[n + 4] = item.wait
end

local function take(reply, t)
  local when, cost, back = said(t)
  local verdict = ALLOWED
  local since = 0
  if when and back < cost then
    verdict = cost == t.cost and REPEATED or OTHER_COST
  end
  for _, item in ipairs(t.items) do
    begin(item)
    if not item.whole then
      since = math.max(since, item.since)
    end
    if judge(item, t.cost) > 0 and verdict == ALLOWED then
      verdict = REFUSED
    end
    if verdict == REPEATED then
      item.wait = 0
    end
  end
  if MODE == 'T' and verdict == ALLOWED then
    for _, item in ipairs(t.items) do
      count(item, t.cost)
    end
    if t.id then
      remember(t, now, t.cost, 0)
    end
  end
  reply[#reply + 1], reply[#reply + 2] = verdict, since
  for _, item in ipairs(t.items) do
    stand(reply, item)
  end
end

-- uncount gives back of one subject what was counted at a time.
local function uncount(item, when, n)
  local s = item.spec
  if s.windows then
    return unslide(item, when, n)
  end
  local from, used = read_count(item.key)
  if not from then
    return
  end
  if s.kind == 'F' then
    if when < from or when >= from + s.longest then
      return
    end
  elseif from ~= period(s, when) or (counts_since(item.rule) or 0) > when then
    -- of another period, or the rule began in it after this was taken
    return
  end
  if used > n then
    return write_count(s, item.key, from, used - n, now)
  end
  redis.call('DEL', item.key)
end

local function give_back(reply, t)
  local when, cost, back = said(t)
  local want = when and math.min(t.cost, cost) or 0
  if when and want > back then
    for _, item in ipairs(t.items) do
      uncount(item, when, want - back)
    end
    remember(t, when, cost, want)
  end
  reply[#reply + 1] = math.max(want, back or 0)
end

local takings = read_takings()
local reply = { now }
for _, t in ipairs(takings or {}) do
  if MODE == 'R' then
    give_back(reply, t)
  else
    take(reply, t)
  end
end
return reply
