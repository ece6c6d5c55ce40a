-- Queue: decides who is given a slot first. It is hints: a key that is lost or wrong costs time, and never gives a
-- slot too many
-- (core.lua). A queue that lost a part begins anew, with the next reports.
--
-- KEYS  5 queue   ZSET  "class|batch|order|device" -> 0. class: T waits and can be told of a slot, O was offered one,
--                       P polls; batch: 16
--                       digits; order: priority and task, 27 characters. And "H|batch|lease" of what is held
--       6 waiter  HASH  device -> its waiter, JSON: device, batch, order, class; reach: how it can be told, 0 = it
--                       polls; foreseen: the
--                       grant, by number, that it is likely given; due: when it was told to ask again. With an offer:
--                       offer, its id; ends; told:
--                       it was sent; kept: it is one to a poller
--       7 timer   ZSET  device -> when its offer lapses or is sent again, or when it leaves
--       8 batch   HASH  batch -> "weight|virtual time|lane"; "pool" -> JSON: grants, time, weights, kept, vain,
--                       offer, now, percent; and of the
--                       batches of the lane together: lane, what they hold; urgent, how many wait
--       9 contest ZSET  "virtual time|batch" -> held / weight, of batches with a T; of the lane also that and U ->
--                       the same, less FIRST
--      10 owed    ZSET  device -> foreseen, of P that were passed over
--
-- The order. The next slot goes to the batch with the lowest held / weight, what is offered being held; of equal ones
-- to the one with the
-- lowest virtual time, which grows by UNIT / weight a grant; then to the older. In a batch: the highest priority,
-- then the oldest task. The
-- lane goes before: urgent batches, while they hold less than percent of the capacity, rounded up. Beyond it they are
-- as all others.
--
-- A slot that falls free is offered at once: to a poller that is about to come, and is owed one, or of a batch that
-- lacks some or goes before
-- (keep); else to the first T of the contest. A slot offered to nobody goes to the first device that asks. A poller
-- is owed one when it asks
-- after as many grants as were foreseen for it, and another capacity. A newcomer is foreseen after all grants that
-- passed: no poller starves.
local queue = {}
-- of virtual time: one grant of a batch of weight 1; more than any held / weight
local UNIT = 1000000
local FIRST = 16384
-- a call makes so many offers and hears so many timers; pollers it looks at; waiters that leave a batch
local MOST = 100
local FEW = 16
local CLOSED = 200
-- the reach of a request that waits at a replica; ms after which an offer that was not sent is returned again
local PARKED = 2
local RESEND = 500
-- ms before and after a poller is due that a slot is kept for it at most
local SOON = 2000
local LATE = 1000
-- of slot-time one in so many is kept for pollers, but for so many ms / capacity ahead; as many come at once
local SHARE = 20
local AHEAD = 200000
-- report periods that a waiter sleeps at most: that polls, that can be told
local ALONE = 3
local TOLD = 8
-- after so many offers in a row that nobody came for, they last so many times less
local VAIN = 10
local HURRY = 6

-- where a class stands in the queue, or one of its batches, up to a waiter
local function range(class, batch, order)
  local from = class .. '|' .. (batch and batch .. '|' or '')
  return '[' .. from, '(' .. from .. (order or '\255')
end

-- how many wait
local function size(q)
  q.size = q.size or redis.call('HLEN', q.waiter)
  return q.size
end

local function count(q, class, ...)
  if class ~= 'H' and size(q) == 0 or class == 'O' and q.offered == 0 then
    return 0
  end
  return redis.call('ZLEXCOUNT', q.queue, range(class, ...))
end

local function held(q, batch)
  return count(q, 'H', batch) + count(q, 'O', batch)
end

local function waiting(q, ...)
  return count(q, 'T', ...) + count(q, 'O', ...) + count(q, 'P', ...)
end

-- when an offer was
local function made(w)
  return math.floor(tonumber(w.offer) / 1000)
end

local function exact(n)
  return string.format('%.17g', n)
end

local function entry(b)
  return string.format('%020.0f|', b.time) .. b.name
end

local function offered(q)
  q.offered = q.offered or count(q, 'O')
  return q.offered
end

-- slots neither held nor offered
function queue.left(q)
  return q.pool.capacity - q.pool.held - offered(q)
end

-- slots for which the lane goes before
function queue.room(q)
  return math.ceil(q.pool.capacity * q.state.percent / 100) - q.state.lane
end

local function share(q, b)
  return b.held / b.weight - (b.lane == 'U' and queue.room(q) > 0 and FIRST or 0)
end

-- its part of what the lane has
local function lane(q, b)
  if b.lane == 'U' then
    return b.held, waiting(q, b.name)
  else
    return 0, 0
  end
end

function queue.waiter(q, device)
  local text = size(q) > 0 and redis.call('HGET', q.waiter, device)
  return text and cjson.decode(text) or nil
end

-- the first of a class, or of one of its batches
function queue.waiters(q, limit, ...)
  local from, to = range(...)
  local all = redis.call('ZRANGEBYLEX', q.queue, from, to, 'LIMIT', 0, limit)
  for i, member in ipairs(all) do
    all[i] = queue.waiter(q, string.sub(member, 48))
  end
  return all
end

-- reads whether a batch waits; without a waiter it begins where the others are
local function look(q, b)
  b.told = count(q, 'T', b.name) > 0
  b.waits = b.told or count(q, 'O', b.name) > 0 or count(q, 'P', b.name) > 0
  if not b.waits then
    b.time = math.max(b.time, q.state.time)
  end
end

-- as it was noted last, or as a want has it
local function batch(q, name, want)
  local b = q.batches[name]
  if not b then
    local text = redis.call('HGET', q.batch, name)
    local weight, time, of = string.match(text or '1|0|', '(%d+)|(%d+)|(U?)')
    q.grew = q.grew or not text
    b = { name = name, weight = tonumber(weight), time = tonumber(time), lane = of, held = held(q, name) }
    b.listed = entry(b) .. of
    b.has, b.queued = lane(q, b)
    look(q, b)
    b.share = b.waits and b.weight or 0
    b.listed = b.told and b.listed
    q.batches[name] = b
  end
  if want then
    b.weight = want.weight
    b.lane = want.lane and 'U' or ''
    q.state.percent = want.lane or q.state.percent
  end
  return b
end

-- save notes a batch of which something changed, and what it holds more; flush enters those in the contest, and write
-- writes them.
local function save(q, b, more)
  b.held = b.held + more
  q.changed[b.name] = b
end

local function flush(q)
  for name, b in pairs(q.changed) do
    look(q, b)
    local s = q.state
    local at = entry(b)
    local weight = b.waits and b.weight or 0
    local has, queued = lane(q, b)
    s.weights = s.weights + weight - b.share
    s.lane = s.lane + has - b.has
    s.urgent = s.urgent + queued - b.queued
    if b.listed and b.listed ~= (b.told and at .. b.lane) then
      redis.call('ZREM', q.contest, b.listed, string.sub(b.listed, 1, 37))
    end
    b.share = weight
    b.has = has
    b.queued = queued
    b.listed = b.told and at .. b.lane
    q.changed[name] = nil
    if b.told then
      redis.call('ZADD', q.contest, exact(b.held / b.weight - FIRST), b.listed, exact(b.held / b.weight), at)
    end
    q.fields[#q.fields + 1], q.fields[#q.fields + 2] =
      name,
      core.text(b.weight) .. '|' .. core.text(b.time) .. '|' .. b.lane
  end
end

local function write(q)
  if #q.fields > 0 then
    redis.call('HSET', q.batch, unpack(q.fields))
  end
  q.fields = {}
end

-- forgets the batches that ended, and counts the lane anew
local function forget(q)
  write(q)
  q.state.lane = 0
  q.state.urgent = 0
  for _, name in ipairs(redis.call('HKEYS', q.batch)) do
    local b = name ~= 'pool' and batch(q, name)
    if b then
      b.has = 0
      b.queued = 0
      q.changed[name] = b
    end
    flush(q)
    write(q)
    if b and waiting(q, name) + b.held == 0 then
      redis.call('HDEL', q.batch, name)
    end
  end
end

-- move puts a waiter into a class of the queue, or out of it (nil). Unless the class is O its offer ends, and what it
-- is owed until it asks.
local function move(q, w, class)
  -- as it was
  local b = batch(q, w.batch)
  local more = (class == 'O' and 1 or 0) - (w.class == 'O' and 1 or 0)
  q.offered = offered(q) + more
  q.size = size(q) + (class and 1 or 0) - (w.class and 1 or 0)
  if w.offer and class ~= 'O' then
    if w.kept then
      q.state.kept = q.state.kept - math.max(w.ends - q.now, 0) * SHARE / math.max(q.pool.capacity, 1)
    end
    w.offer = nil
    w.ends = nil
    w.told = nil
    w.kept = nil
    redis.call('ZREM', q.owed, w.device)
  end

  local function member()
    return table.concat({ w.class, w.batch, w.order, w.device }, '|')
  end

  if w.class then
    redis.call('ZREM', q.queue, member())
  end
  w.class = class
  if not class then
    redis.call('HDEL', q.waiter, w.device)
    redis.call('ZREM', q.timer, w.device)
    redis.call('ZREM', q.owed, w.device)
  else
    local at = w.offer and (w.told and w.ends or math.min(w.ends, q.now + RESEND))
      or w.due + q.pace.period + SOON
    redis.call('ZADD', q.queue, 0, member())
    redis.call('ZADD', q.timer, core.text(at), w.device)
    redis.call('HSET', q.waiter, w.device, cjson.encode(w))
  end
  save(q, b, more)
end

-- returns an offer to the caller, to be sent, and again until it says that it was
local function tell(q, w)
  move(q, w, 'O')
  q.made[#q.made + 1] = {
    device = w.device,
    batch = w.batch,
    task = string.sub(w.order, 12),
    reach = w.reach,
    id = w.offer,
    left = w.ends - q.now,
    age = q.now - made(w),
  }
end

-- lapse hears the timers. missed: an offer to a parked device that was not sent is returned to this caller, too, who
-- may have the device.
local function lapse(q, missed)
  local over = redis.call('ZCOUNT', q.timer, '-inf', core.text(q.now))
  for i, device in ipairs(redis.call(
    'ZRANGEBYSCORE', q.timer, '-inf', core.text(q.now + (missed and RESEND or 0)), 'LIMIT', 0, MOST
  )) do
    local w = queue.waiter(q, device)
    if i <= over or w.offer and not w.told and w.reach == PARKED and made(w) <= q.now - RESEND then
      if w.offer and w.ends <= q.now and not w.kept then
        q.state.vain = q.state.vain + 1
      end
      if not w.offer then
        move(q, w, nil)
      elseif w.ends > q.now then
        tell(q, w)
      else
        move(q, w, 'P')
      end
    end
  end
end

-- repair begins anew where a part was lost, or the clock stepped back; where what is held changed beside the queue,
-- it asks the holders.
local function repair(q)
  local waiters = size(q)
  local entries = redis.call('ZCARD', q.queue)
  local s = q.state
  local h = entries == waiters + q.pool.held and q.pool.held or count(q, 'H')
  if redis.call('ZCARD', q.timer) ~= waiters
    or entries - h ~= waiters
    or s.now > q.now + 1000
    or waiters > 0 and (s.now == 0 or count(q, 'T') > 0 and redis.call('ZCARD', q.contest) == 0)
  then
    redis.call('DEL', q.queue, q.waiter, q.timer, q.batch, q.contest, q.owed)
    h = 0
    q.size = 0
    q.offered = 0
    s.weights = 0
    s.lane = 0
    s.urgent = 0
    s.kept = q.now
    s.offer = '0'
  end
  if h == q.pool.held then
    return
  end
  redis.call('ZREMRANGEBYLEX', q.queue, range('H'))
  for _, r in ipairs(core.holders(q.pool)) do
    redis.call('ZADD', q.queue, 0, 'H|' .. r.batch .. '|' .. r.lease)
  end
  forget(q)
end

function queue.open(keys, pool)
  local state = redis.call('HGET', keys[8], 'pool')
    or '{"grants":0,"time":0,"weights":0,"kept":0,"vain":0,"offer":"0","now":0,"percent":0,"lane":0,"urgent":0}'
  return {
    queue = keys[5],
    waiter = keys[6],
    timer = keys[7],
    batch = keys[8],
    contest = keys[9],
    owed = keys[10],
    pool = pool,
    state = cjson.decode(state),
    now = core.now(),
    batches = {},
    changed = {},
    fields = {},
    made = {},
  }
end

-- start makes the queue of a known pool true, before a script changes it. pace, in ms: hold, how long a slot is
-- usually held; soonest and
-- period, the shortest time after which to ask again, and that between two reports, 0 = nobody waits; offer, how long
-- one lasts, 0 = none.
local function begin(keys, pool, pace, missed)
  local q = queue.open(keys, pool)
  q.pace = pace
  q.keeps = math.max(math.floor(pool.capacity / SHARE), 3)
  q.state.kept = math.max(q.state.kept, q.now)
  repair(q)
  if size(q) > 0 then
    lapse(q, missed)
  end
  return q
end

function queue.start(keys, ...)
  local ok, q = pcall(begin, keys, ...)
  -- of what is no queue, one begins anew
  if not ok then
    redis.call('DEL', unpack(keys, 5, 10))
  end
  return ok and q or begin(keys, ...)
end

-- the number of the task of a device that comes first, and whether it goes before all others
function queue.best(q, wants)
  local best, least, text
  flush(q)
  for n, want in ipairs(wants) do
    local b = batch(q, want.batch, want)
    local held = share(q, b)
    local key = entry(b) .. want.order
    if not best or held < least or held == least and key < text then
      best = n
      least = held
      text = key
    end
  end
  return best, least < 0
end

-- position is in how many grants it is likely that a task starts: of its batch as many as the share lacks, then by
-- the weights of all.
function queue.position(q, device, want)
  flush(q)
  local b = batch(q, want.batch, want)
  local room = math.max(queue.room(q), 0)
  local rank = waiting(q, want.batch, want.order .. '|' .. device) + 1
  local weights = math.max(q.state.weights - b.share, 0) + b.weight
  local lead = math.max(q.pool.capacity * b.weight / weights - b.held, b.lane == 'U' and room or 0)
  if rank > lead then
    rank = math.floor(lead + (rank - lead) * weights / b.weight)
  end
  if b.lane == '' then
    rank = rank + math.min(room, q.state.urgent)
  end
  return math.max(math.min(rank, size(q) + 1), 1)
end

-- sleep is after how long a waiter is to ask again, spread by chance (0 to 1), and its position. first is the rank of
-- a poller in the lane.
local function sleep(q, w, chance, first)
  local rank = first or redis.call('ZRANK', q.owed, w.device)
  local ahead = w.foreseen - q.state.grants
  local period = q.pace.period
  -- between two grants
  local interval = q.pace.hold / q.pool.capacity
  local early = 0.9 + chance / 10
  if q.pool.capacity == 0 then
    return period, math.max(ahead, 1)
  end
  -- the first few at once, the others when it is foreseen for them
  if rank then
    local soon = math.min(q.pace.soonest * (1 + chance / 4 + rank / q.keeps / 4), SOON)
    return math.max(math.min(rank * interval, period) * early, soon), rank + 1
  end
  -- as foreseen, or when it is owed
  local wait = (ahead > 0 and ahead or ahead + q.pool.capacity) * interval
  local most = ALONE * period
  if w.reach > 0 then
    wait = wait + period
    most = TOLD * period
  end
  return math.min(wait, most) * early, math.max(ahead, 1)
end

-- lets a device wait with a task; one that polls keeps its turn. It returns what sleep does
function queue.join(q, device, want, reach, chance)
  local w = queue.waiter(q, device)
  local foreseen = w and w.foreseen
  if w and w.batch .. w.order ~= want.batch .. want.order then
    w = move(q, w, nil)
  end
  local b = batch(q, want.batch, want)
  local place = queue.position(q, device, want)
  w = w or { device = device, batch = want.batch, order = want.order }
  w.foreseen = math.min(reach == 0 and foreseen or math.huge, q.state.grants + place)
  w.reach = reach
  redis.call('ZREM', q.owed, device)
  if reach == 0 and q.state.grants >= w.foreseen + q.pool.capacity then
    redis.call('ZADD', q.owed, core.text(w.foreseen), device)
  end
  local after, position = sleep(
    q, w, chance, reach == 0 and share(q, b) < 0 and place <= queue.room(q) and place - 1
  )
  w.due = q.now + math.max(math.floor(after), q.pace.soonest)
  if q.pace.period > 0 then
    move(q, w, reach > 0 and 'T' or 'P')
  end
  return w.due - q.now, position
end

-- counts a slot that a device was given for a task; it waits no more
function queue.grant(q, device, want)
  local w = queue.waiter(q, device)
  local b = batch(q, want.batch, want)
  if w and w.offer and not w.kept then
    q.state.vain = 0
  end
  if w then
    move(q, w, nil)
  end
  q.state.time = math.max(b.time, q.state.time)
  b.time = q.state.time + math.max(math.floor(UNIT / b.weight), 1)
  q.state.grants = q.state.grants + 1
  save(q, b, redis.call('ZADD', q.queue, 0, 'H|' .. b.name .. '|' .. want.lease))
end

-- release counts a slot that was taken back.
function queue.release(q, r)
  save(q, batch(q, r.batch), -redis.call('ZREM', q.queue, 'H|' .. r.batch .. '|' .. r.lease))
end

-- update applies what became of a waiter, or of that offer to it. sent: it was told. away: it is told of nothing
-- until it asks. left: it waits
-- no more. closed: nor does anybody of the batch, up to CLOSED of each class.
function queue.update(q, u)
  local w = queue.waiter(q, u.device)
  for _, class in ipairs(u.kind == 'closed' and { 'T', 'O', 'P' } or {}) do
    for _, one in ipairs(queue.waiters(q, CLOSED, class, u.batch)) do
      move(q, one, nil)
    end
  end
  if not w or u.offer and u.offer ~= w.offer then
    return
  end
  if u.kind == 'left' then
    move(q, w, nil)
  elseif u.kind == 'away' then
    move(q, w, 'P')
  end
  if u.kind == 'sent' and w.offer then
    w.told = true
    move(q, w, 'O')
  end
end

-- of its share
local function lacks(q, b)
  return (b.held + 1) * (q.state.weights - b.share + b.weight) < q.pool.capacity * b.weight
end

-- keep finds a poller that comes before the next slots are likely to fall free, among the first that are owed or of a
-- batch that lacks some: of
-- the batch that holds least, and no more than the first of the contest, the one that comes first.
local function keep(q, first)
  local most = first and share(q, batch(q, first)) or math.huge
  if q.state.kept - q.now > AHEAD / q.pool.capacity then
    return
  end
  -- due as in the timers of those that wait
  local due = q.now + q.pace.period + SOON
  local w = nil
  local least = nil
  local window = math.max(math.min(2 * q.pace.hold / q.pool.capacity, SOON), SOON / 100)
  for _, device in ipairs(redis.call(
    'ZRANGEBYSCORE', q.timer, core.text(due - LATE), core.text(due + window), 'LIMIT', 0, FEW
  )) do
    local one = queue.waiter(q, device)
    local b = batch(q, one.batch)
    local held = share(q, b)
    local owed = (redis.call('ZRANK', q.owed, device) or q.keeps) < q.keeps
    local waits = one.class == 'P' and held <= most and (held < 0 or lacks(q, b) or owed)
    -- of equal ones the first that is due
    if waits and (not w or held < least) then
      w = one
      least = held
    end
  end
  if w then
    w.ends = math.max(w.due + LATE, q.now + 1)
    w.told = true
    w.kept = true
  end
  q.state.kept = q.state.kept + (w and w.ends - q.now or 0) * SHARE / q.pool.capacity
  return w
end

-- what is free
function queue.offer(q)
  for _ = 1, math.min(queue.left(q), size(q), MOST) do
    flush(q)
    local first = q.pace.offer > 0
      and redis.call('ZRANGEBYSCORE', q.contest, queue.room(q) > 0 and '-inf' or 0, '+inf', 'LIMIT', 0, 1)[1]
    local name = first and string.sub(first, 22, 37)
    local w = keep(q, name) or first and queue.waiters(q, 1, 'T', name)[1]
    -- a part was lost
    if first and not w then
      redis.call('ZREM', q.contest, first)
    end
    if not w then
      break
    end
    -- by it, when it was made
    q.state.offer = core.text(math.max(q.now * 1000, tonumber(q.state.offer) + 1))
    w.offer = q.state.offer
    w.ends = w.ends or q.now + math.floor(q.pace.offer / (q.state.vain < VAIN and 1 or HURRY))
    if w.kept then
      move(q, w, 'O')
    else
      tell(q, w)
    end
  end
end

-- close does so too and writes the queue back; it adds to a reply the offers to send and, if asked for, the state of
-- the queue.
function queue.close(q, reply, state)
  local p = q.pool
  queue.offer(q)
  flush(q)
  if q.grew and redis.call('HLEN', q.batch) > 2 * (p.held + size(q)) + MOST then
    forget(q)
  end
  q.state.now = q.now
  reply.offers = q.made
  q.fields[#q.fields + 1], q.fields[#q.fields + 2] = 'pool', cjson.encode(q.state)
  write(q)
  if state then
    reply.capacity = p.capacity
    reply.held = p.held
    reply.reserved = offered(q)
    reply.ready = count(q, 'T')
    reply.waiting = size(q)
  end
  return cjson.encode(reply)
end

return queue
