-- The line of a pool and the order in it; sent between pool.lua and the scripts
-- that need them.
-- ARGV     of each of them: call id; then of the pace, in ms: how long a slot is
--          usually held, the shortest and the longest time after which to ask
--          again (longest 0 = no line), and how long a place stays reserved for
--          whom it is offered to (0 = nothing is offered)
--
-- KEYS   6 batch  HASH  of batch b, beside "h" .. b: "w" .. b = its weight, and
--                       "p" .. b = "times|member": how often its first waiter
--                       was passed over; "counted" = when the h were counted (ms)
--        7 turn   ZSET  batch -> its virtual time: UNIT / weight more with each grant
--        8 line   ZSET  "batch|priority|task|device" -> 0: one member for each
--                       waiting device, so that text order is the order inside a batch
--        9 due    ZSET  device -> when it was told to ask again (ms)
--       10 place  HASH  device -> its member of the line
--       11 to 15  who can be told of a place, and who was (offer.lua)
--
-- The order. The next place goes to the batch with the lowest held / weight; of
-- equal ones to that whose virtual time is lowest, then to the older one. Inside
-- a batch the highest priority comes first, then the oldest task.
-- The line is about who waits, and nothing is decided by it alone: what is lost
-- of it, or stale in it, changes the order for as long as one report takes.

local TURN, LINE, DUE, PLACE = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local OFFER, OFFERED, UNSENT, READY, REACH = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15]
local UNIT = 1000000      -- of virtual time: one grant of a batch of weight 1
local MAX_BATCHES = 200   -- of a line that are looked at, the oldest
local LOOK = 16           -- waiters of a batch that are looked at, the first
local LARGE = 20          -- a pool may keep one of so many places free, and of fewer one
local MAX_KEPT = 32       -- places that are kept free at most, however large the pool
local LONGEST = 2000      -- ms before and after a waiter is due that a place is kept at most
local LATE = 250          -- ms that one may be late, on its way, before others pass
local COUNT_MS = 10000    -- between two countings of what the batches hold
local SLEEP_TOLD = 8      -- report periods that a waiter who can be told sleeps at most

local hold_ms = integer(ARGV[2], 0, 2 ^ 52, 'hold time')
local soonest = integer(ARGV[3], 0, 2 ^ 52, 'shortest time')
local period = integer(ARGV[4], soonest, 2 ^ 52, 'longest time')
local offer_ms = integer(ARGV[5], 0, 2 ^ 52, 'time of an offer')
local window = math.min(math.floor(hold_ms / 40), LONGEST)

local function member_name(want, device)
  return want.batch .. '|' .. string.format('%010.0f', 2 ^ 31 - want.priority) .. '|' .. number_name(want.task) .. '|' .. device
end

-- score reads one that Redis may write as 2e+8: the Lua of the in-process one
-- reads only 2.0e+8.
local function score(text) return tonumber(text) or tonumber((string.gsub(text, 'e', '.0e'))) end

local function batch_of_member(member) return string.sub(member, 1, 16) end
local function device_of_member(member) return string.sub(member, 46) end

-- mend drops a line of which a part was lost: the waiters come again.
local function mend()
  local members = redis.call('ZCARD', LINE)
  if redis.call('ZCARD', DUE) ~= members or redis.call('HLEN', PLACE) ~= members then
    redis.call('DEL', LINE, DUE, PLACE, READY, REACH, OFFER, OFFERED, UNSENT)
  elseif redis.call('HLEN', OFFERED) ~= redis.call('ZCARD', OFFER) then
    redis.call('DEL', OFFER, OFFERED, UNSENT)
  end
end

-- withdraw ends the offer to a device, if it has one, and returns what it was for.
local function withdraw(device)
  local id, made, member = string.match(redis.call('HGET', OFFERED, device) or '', '^(%d+)|(%d+)|(.*)$')
  if not id then return end
  redis.call('HDEL', OFFERED, device)
  redis.call('ZREM', OFFER, device)
  redis.call('ZREM', UNSENT, device)
  uncount(batch_of_member(member))
  return member
end

local function leave(device)
  withdraw(device)
  local member = redis.call('HGET', PLACE, device)
  if member then
    redis.call('ZREM', LINE, member)
    redis.call('ZREM', READY, member)
    redis.call('ZREM', DUE, device)
    redis.call('HDEL', PLACE, device)
    redis.call('HDEL', REACH, device)
  end
end

-- away keeps a device's place in line, but it is told of nothing until it asks.
local function away(device)
  withdraw(device)
  redis.call('HDEL', REACH, device)
  local member = redis.call('HGET', PLACE, device)
  if member then redis.call('ZREM', READY, member) end
end

-- join lets a device without an offer stand in line; reach: 0 = it polls.
local function join(device, member, due, reach)
  local old = redis.call('HGET', PLACE, device)
  if old and old ~= member then
    redis.call('ZREM', LINE, old)
    redis.call('ZREM', READY, old)
  end
  redis.call('ZADD', LINE, 0, member)
  redis.call('HSET', PLACE, device, member)
  redis.call('ZADD', DUE, text(due), device)
  if reach > 0 then
    redis.call('ZADD', READY, 0, member)
    redis.call('HSET', REACH, device, text(reach))
  else
    redis.call('ZREM', READY, member)
    redis.call('HDEL', REACH, device)
  end
end

-- leave_overdue takes out a few who did not come for longer than a report period. A waiter
-- that is due later than any is told to come gets a period anew: the clock stepped back.
local function leave_overdue(now)
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', DUE, '(' .. text(now + SLEEP_TOLD * period), '+inf', 'LIMIT', 0, 100)) do
    redis.call('ZADD', DUE, text(now + period), device)
  end
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', text(now - period - LONGEST), 'LIMIT', 0, 10)) do
    leave(device)
  end
end

-- count_held counts anew what each batch holds or is offered, and forgets batches that are not
-- in the contest.
local function count_held(now, contest)
  local held, fields = {}, { 'counted', text(now) }
  for _, record in ipairs(redis.call('HVALS', HOLDER)) do
    local batch = batch_of(record)
    held[batch] = (held[batch] or 0) + 1
  end
  for _, offer in ipairs(redis.call('HVALS', OFFERED)) do
    local batch = batch_of_member(string.match(offer, '^%d+|%d+|(.*)$'))
    held[batch] = (held[batch] or 0) + 1
  end
  local kept = {}
  for _, b in ipairs(contest.all) do
    kept[#kept + 1], kept[#kept + 2] = 'w' .. b.name, 'p' .. b.name
  end
  for i, value in ipairs(#kept > 0 and redis.call('HMGET', BATCH, unpack(kept)) or {}) do
    if value then fields[#fields + 1], fields[#fields + 2] = kept[i], value end
  end
  for batch, n in pairs(held) do
    fields[#fields + 1], fields[#fields + 2] = 'h' .. batch, text(n)
  end
  redis.call('DEL', BATCH)
  for first = 1, #fields, 1000 do
    redis.call('HSET', BATCH, unpack(fields, first, math.min(first + 999, #fields)))
  end
  for _, batch in ipairs(redis.call('ZRANGEBYSCORE', TURN, '-inf', text(contest.newest - UNIT), 'LIMIT', 0, 1000)) do
    if not contest[batch] then redis.call('ZREM', TURN, batch) end
  end
end

-- read_line lists the batches that wait, each with its first waiter and how many
-- they are. The member of the asker itself does not count.
local function read_line(contest, own)
  local from = '-'
  while #contest.all < MAX_BATCHES do
    local first = redis.call('ZRANGEBYLEX', LINE, from, '+', 'LIMIT', 0, 2)
    if not first[1] then return end
    local name = batch_of_member(first[1])
    local b = {
      name = name, head = first[1],
      waiting = redis.call('ZLEXCOUNT', LINE, '[' .. name, '(' .. name .. '}'),
    }
    if own and batch_of_member(own) == name then
      b.waiting = b.waiting - 1
      if own == b.head then b.head = b.waiting > 0 and first[2] or nil end
    end
    contest.all[#contest.all + 1] = b
    contest[name] = b
    from = '(' .. name .. '}'
  end
end

-- read_batches adds what each batch holds, its weight and its virtual time.
local function read_batches(contest)
  local fields, names = {}, {}
  for i, b in ipairs(contest.all) do
    fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = 'h' .. b.name, 'w' .. b.name, 'p' .. b.name
    names[i] = b.name
  end
  local values = redis.call('HMGET', BATCH, unpack(fields))
  local turns = redis.call('ZMSCORE', TURN, unpack(names))
  for i, b in ipairs(contest.all) do
    b.held = tonumber(values[3 * i - 2] or 0)
    b.weight = b.weight or tonumber(values[3 * i - 1] or 1)
    b.turn = math.max(turns[i] and score(turns[i]) or contest.newest, contest.newest - UNIT)
    local times, of = string.match(values[3 * i] or '', '^(%d+)|(.*)$')
    b.passed = of == b.head and tonumber(times) or 0
  end
end

-- contest_of is everything the order goes by at this moment: the batches of the
-- line, and those of which the asker wants something.
local function contest_of(now, wants, own, counting)
  local contest = { all = {} }
  contest.newest = score(redis.call('ZREVRANGE', TURN, 0, 0, 'WITHSCORES')[2] or '0')
  read_line(contest, own)
  for _, want in ipairs(wants) do
    local b = contest[want.batch]
    if not b then
      b = { name = want.batch, waiting = 0 }
      contest.all[#contest.all + 1] = b
      contest[want.batch] = b
    end
    b.weight = want.weight
  end
  if counting and math.abs(now - tonumber(redis.call('HGET', BATCH, 'counted') or 0)) >= COUNT_MS then
    count_held(now, contest)
  end
  if #contest.all > 0 then read_batches(contest) end
  return contest
end

-- first_of_equals decides between batches of the same held / weight.
local function first_of_equals(a, b)
  if a.turn ~= b.turn then return a.turn < b.turn end
  return a.name < b.name
end

-- before is THE ORDER of batches, for the next place.
local function before(a, b)
  local x, y = a.held * b.weight, b.held * a.weight
  if x ~= y then return x < y end
  return first_of_equals(a, b)
end

-- turn_of is how many grants it takes until batch a has had k more, when places
-- go out one by one in the order, and each other batch takes what wanting says
-- at most.
local function turn_of(contest, a, k, wanting)
  local grants, level = k, a.held + k - 1 -- what a holds before its k-th
  for _, b in ipairs(contest.all) do
    if b ~= a and b.waiting > 0 then
      local share = level * b.weight
      local ahead = math.floor(share / a.weight) - b.held
      if share % a.weight > 0 or first_of_equals(b, a) then ahead = ahead + 1 end
      if ahead > 0 then grants = grants + math.min(ahead, wanting(b)) end
    end
  end
  return grants
end

local function all_waiting(b) return b.waiting end

-- position is the turn of a want if it stood in line: 1 is next.
local function position(contest, want, member, own)
  local ahead = redis.call('ZLEXCOUNT', LINE, '[' .. want.batch, '(' .. member)
  if own and batch_of_member(own) == want.batch and own < member then ahead = ahead - 1 end
  return turn_of(contest, contest[want.batch], ahead + 1, all_waiting)
end

-- sooner orders the wants of one device: by batch, and in a batch.
local function sooner(contest, a, b)
  if a.batch ~= b.batch then return before(contest[a.batch], contest[b.batch]) end
  if a.priority ~= b.priority then return a.priority > b.priority end
  return a.task < b.task
end
