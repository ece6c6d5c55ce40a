-- Offers: a free place is reserved for the next waiter who can be told of it;
-- sent behind line.lua to the scripts that free places or ask for them.
--
-- KEYS  11 offer    ZSET  device -> until when a place is reserved for it (ms)
--       12 offered  HASH  device -> "id|made_ms|member of the line"
--       13 unsent   ZSET  device -> when to return its offer again, as long as
--                         nobody says that it was sent (ms)
--       14 ready    ZSET  as line, but only who can be told and has no offer
--       15 reach    HASH  device -> how it can be told; absent: it polls
--
-- An offer is no permission: its device asks for the place, as anybody does. It
-- counts for its batch as a place held, from when it is made. It ends when its
-- device asks, leaves, or lets it lapse; who lets one lapse is told of nothing
-- more until it asks by itself.
--
-- Invariant, at the end of every script that is sent behind this one: of the
-- places that are neither held nor reserved, none is left while somebody is
-- ready, unless it is kept for one who polls, comes first and is expected now
-- (expected), or more than MAX_OFFERS were made.

local MAX_OFFERS = 100 -- made or returned by one call
local RESEND_MS = 500  -- after which an offer that was not sent is returned again
local PARKED = '2'     -- the reach of whose report is parked at a replica

local kept = capacity and math.min(math.max(math.floor(capacity / LARGE), 1), MAX_KEPT)
local patience = capacity and math.max(capacity, 3)

-- places are those that are neither held nor reserved.
local function places() return capacity - held - redis.call('ZCARD', OFFER) end

-- is_urgent says whether a place is kept longer for a waiter of a batch:
-- it comes first and was passed over often enough, or the batch has nothing yet
-- and the pool is so large that one place more or less is little.
local function is_urgent(b, member)
  return member == b.head and b.passed >= patience or b.held == 0 and capacity >= LARGE
end

-- expected counts the waiters of a batch who poll and are likely to come while a
-- place is kept for them, and only those before a member.
local function expected(now, b, device, member)
  local top = member and '(' .. member or '(' .. b.name .. '}'
  local first = redis.call('ZRANGEBYLEX', LINE, '[' .. b.name, top, 'LIMIT', 0, LOOK)
  if #first == 0 then return 0 end
  local devices = {}
  for i, m in ipairs(first) do devices[i] = device_of_member(m) end
  local dues = redis.call('ZMSCORE', DUE, unpack(devices))
  local reaches = redis.call('HMGET', REACH, unpack(devices))
  local n = 0
  for i, due in ipairs(dues) do
    local ahead, behind = window, window + LATE
    if is_urgent(b, first[i]) then ahead, behind = LONGEST, LONGEST end
    due = due and score(due) or 0
    if devices[i] ~= device and not reaches[i] and due >= now - behind and due <= now + ahead then n = n + 1 end
  end
  return n
end

-- has_turn says whether one of the free places is a waiter's of batch a.
local function has_turn(now, contest, a, device, member, free)
  local k = expected(now, a, device, member) + 1
  local function wanting(b)
    b.expected = b.expected or expected(now, b, device)
    return b.expected
  end
  return k <= free and turn_of(contest, a, k, wanting) <= free
end

-- note_passed counts for each batch that its first waiter is passed over by this
-- grant or offer, up to where a place is kept for it longer. Who has an offer is not.
local function note_passed(contest, a, member)
  for _, b in ipairs(contest.all) do
    local passed = b.head and (b == a and b.head < member or b ~= a and before(b, a))
    if passed and b.passed < patience and redis.call('HEXISTS', OFFERED, device_of_member(b.head)) == 0 then
      redis.call('HSET', BATCH, 'p' .. b.name, text(b.passed + 1) .. '|' .. b.head)
    end
  end
end

-- lapse ends the offers whose time is over, and those that were made in the future:
-- the clock stepped back.
local function lapse(now)
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', OFFER, '-inf', text(now), 'LIMIT', 0, MAX_OFFERS)) do
    away(device)
  end
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', OFFER, '(' .. text(now + offer_ms), '+inf', 'LIMIT', 0, MAX_OFFERS)) do
    local made = string.match(redis.call('HGET', OFFERED, device) or '', '^%d+|(%d+)|')
    if made and tonumber(made) > now then away(device) end
  end
end

-- ready_after is the first of a batch who is ready, after a member if one is given.
local function ready_after(b, member)
  return redis.call('ZRANGEBYLEX', READY, member and '(' .. member or '[' .. b.name, '(' .. b.name .. '}', 'LIMIT', 0, 1)[1]
end

-- next_ready is the batch of which somebody is ready that comes first.
local function next_ready(contest)
  local first
  for _, b in ipairs(contest.all) do
    if b.ready == nil then b.ready = ready_after(b) or false end
    if b.ready and (not first or before(b, first)) then first = b end
  end
  return first
end

-- offer_name is larger with each call, and in it with each n.
local function offer_name(n)
  local t = redis.call('TIME')
  return text(tonumber(t[1]) * 1000000 + tonumber(t[2]) + n)
end

local function make_offer(now, b, n)
  local member, device = b.ready, device_of_member(b.ready)
  redis.call('ZREM', READY, member)
  redis.call('ZADD', OFFER, text(now + offer_ms), device)
  redis.call('HSET', OFFERED, device, offer_name(n) .. '|' .. text(now) .. '|' .. member)
  redis.call('ZADD', UNSENT, 0, device)
  redis.call('HINCRBY', BATCH, 'h' .. b.name, 1)
  b.held, b.ready = b.held + 1, ready_after(b, member) or false
end

-- offer_places reserves what is free for who is ready.
local function offer_places(now)
  local free = places()
  if free < 1 or redis.call('ZCARD', READY) == 0 then return end
  local contest = contest_of(now, {}, nil, true)
  for n = 1, math.min(free, MAX_OFFERS) do
    local b = next_ready(contest)
    if not b then return end
    if free <= kept and not has_turn(now, contest, b, device_of_member(b.ready), b.ready, free) then return end
    note_passed(contest, b, b.ready)
    make_offer(now, b, n)
    free = free - 1
  end
end

-- add_offer adds the offer of a device to a reply.
local function add_offer(now, reply, device)
  local id, made, member = string.match(redis.call('HGET', OFFERED, device) or '', '^(%d+)|(%d+)|(.*)$')
  for _, part in ipairs({
    device, string.sub(member, 1, 16), string.sub(member, 29, 44), tonumber(redis.call('HGET', REACH, device) or 0),
    id, score(redis.call('ZSCORE', OFFER, device)) - now, now - tonumber(made),
  }) do reply[#reply + 1] = part end
end

-- missed_offers are those to parked reports that were returned and not sent: the
-- replica where the report is may have heard nothing.
local function missed_offers(now)
  local missed = {}
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', UNSENT, '(' .. text(now), '+inf', 'LIMIT', 0, MAX_OFFERS)) do
    local made = string.match(redis.call('HGET', OFFERED, device) or '', '^%d+|(%d+)|')
    if redis.call('HGET', REACH, device) == PARKED and made and tonumber(made) <= now - RESEND_MS then missed[#missed + 1] = device end
  end
  return missed
end

-- hand_on keeps the line and its offers true, and adds to a reply the offers that
-- are to be sent now, with missed also those that others may have told in vain:
-- device, batch, task, reach, id, ms left, ms since it was made (batch, task and
-- id as strings).
local function hand_on(now, reply, missed)
  if offer_ms == 0 or redis.call('ZCARD', LINE) + redis.call('ZCARD', OFFER) + redis.call('ZCARD', READY) == 0 then return reply end
  mend()
  lapse(now)
  leave_overdue(now)
  offer_places(now)
  for _, device in ipairs(missed and missed_offers(now) or {}) do add_offer(now, reply, device) end
  for _, device in ipairs(redis.call('ZRANGEBYSCORE', UNSENT, '-inf', text(now), 'LIMIT', 0, MAX_OFFERS)) do
    redis.call('ZADD', UNSENT, text(now + RESEND_MS), device)
    add_offer(now, reply, device)
  end
  return reply
end

-- state_and_offers does what hand_on does, and says first how many places and
-- waiters there are after it.
local function state_and_offers(now, missed)
  local offers = hand_on(now, {}, missed)
  local reply = { capacity, held, redis.call('ZCARD', OFFER), redis.call('ZCARD', READY), redis.call('ZCARD', LINE) }
  for _, part in ipairs(offers) do reply[#reply + 1] = part end
  return reply
end
