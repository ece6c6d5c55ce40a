-- acquire: a slot for a device that wants one for any of some tasks; else its
-- place in line.
-- KEYS     the pool (pool.lua, line.lua, offer.lua)
-- ARGV     as line.lua has it; how many devices are known to wait for the pool, in
--          line or not (0 = unknown); then per device: device, chance (0..1000), reach
--          (0 = it polls), number of wants; and per want: lease, ttl_ms, batch,
--          weight, priority, task
-- Returns  per device: status, slot, number of the want that got it, position
--          in line, ms after which to ask again (the last two: FULL);
--          then offers (offer.lua)
-- Keeps    held < capacity before every grant; a lease holds at most one slot.
--          Holders whose lease ended still count: only a release frees.
--          Who was offered a place gets it. Else, with a free place that is not
--          reserved, the asker is refused only for waiters who come before it in
--          the order and are expected (offer.lua).
local UNKNOWN, FULL, ACQUIRED, HELD = 0, 1, 2, 3
local SLEEP = 3 -- report periods that a waiter who polls sleeps at most
local MANY = 40 -- places of a pool in which one that is empty for a moment is little

-- read_asker reads one device's part of the arguments, from at on.
local function read_asker(at)
  check(ARGV[at + 3], 'number of arguments')
  local asker = { device = ARGV[at], chance = integer(ARGV[at + 1], 0, 1000, 'chance'), reach = integer(ARGV[at + 2], 0, 9, 'reach'), wants = {} }
  for n = 1, integer(ARGV[at + 3], 1, MAX_BATCHES, 'number of wants') do
    local i = at + 6 * n - 2
    check(ARGV[i + 5], 'number of arguments')
    asker.wants[n] = {
      n = n, lease = ARGV[i], ttl = integer(ARGV[i + 1], 1, 2 ^ 52, 'ttl'),
      batch = number_name(integer(ARGV[i + 2], 0, 2 ^ 53, 'batch')), weight = integer(ARGV[i + 3], 1, 2 ^ 20, 'weight'),
      priority = integer(ARGV[i + 4], -2 ^ 30, 2 ^ 30, 'priority'), task = integer(ARGV[i + 5], 0, 2 ^ 53, 'task'),
    }
  end
  return asker, at + 4 + 6 * #asker.wants
end

local waiting = integer(ARGV[6], 0, 2 ^ 52, 'waiting devices')
local askers, at = {}, 7
while ARGV[at] do
  local asker
  asker, at = read_asker(at)
  askers[#askers + 1] = asker
end

local now = now_ms() -- capacity and held: alone.lua
local reply = {}

local function answer(status, slot, want, place, after)
  for _, n in ipairs({ status, tonumber(slot), want, place, after }) do reply[#reply + 1] = n end
end

-- holding finds the slot that a lease of the asker holds, and says how it came
-- by it: by this very request (sent again), or before it.
local function holding(asker, tag)
  local leases = {}
  for n, want in ipairs(asker.wants) do leases[n] = want.lease end
  for n, slot in ipairs(redis.call('HMGET', LEASE, unpack(leases))) do
    if slot then
      local record = redis.call('HGET', HOLDER, slot)
      return n, slot, string.sub(record, -#tag - 1) == ':' .. tag and ACQUIRED or HELD
    end
  end
end

local function grant(asker, want, tag)
  local slot = redis.call('ZRANGEBYSCORE', FREE_AT, 0, 0, 'LIMIT', 0, 1)[1]
  hold(slot, want.lease, asker.device, want.batch, tag, now, now + want.ttl)
  held = held + 1
  answer(ACQUIRED, slot, want.n, 0, 0)
end

-- grant_from_line is a grant while others wait, or to one who did.
local function grant_from_line(contest, asker, want, tag)
  local a = contest[want.batch]
  redis.call('ZADD', TURN, text(a.turn + math.floor(UNIT / a.weight)), a.name)
  if a.waiting > 0 then redis.call('HSET', BATCH, 'w' .. a.name, text(a.weight)) end
  leave(asker.device)
  grant(asker, want, tag)
end

-- turn is how long it takes until the turn of a place in a line of so many, the
-- asker among them, and until the turn of all who wait. Of those who have not asked
-- yet as many come before it as do in line, in proportion.
local function turn(place, line)
  if capacity == 0 then return period, 0 end
  local unasked = math.max(waiting - line, 0)
  local before = place + unasked * place / (line + 1)
  return before * hold_ms / capacity, (line + unasked) * hold_ms / capacity
end

-- lateness is by how much one who polls may come after its turn, so that it is not
-- refused once more for a little: as long as others, who stand behind it, come
-- meanwhile and no place is empty. Where places are few, none can be spared.
local function lateness(wait, all)
  if capacity < MANY then return 0 end
  return math.min(3 * wait, (wait + period) / 4, (all - wait) / 4)
end

-- sleep is how long a waiter is to stay away, from how long it takes until its turn. One
-- who is told comes only should nobody tell it. One who polls comes for its turn:
-- somewhat later if it may, else up to a tenth sooner. For who comes too late, when
-- nobody is left who could come instead, leaves its place empty.
local function sleep(asker, wait, all)
  local chance = asker.chance / 1000
  local early = 0.9 + chance / 10
  if asker.reach > 0 then
    wait = math.min(wait + period, SLEEP_TOLD * period) * early
  else
    local late = lateness(wait, all)
    wait = math.min(late > wait / 10 and wait + late * chance or wait * early, SLEEP * period * early)
  end
  return math.max(math.floor(wait), soonest)
end

-- line_up refuses: the asker stands in line for what comes first, and is told to
-- ask again when that is likely.
local function line_up(contest, asker, own)
  local best, nearest
  for _, want in ipairs(asker.wants) do
    local place = position(contest, want, member_name(want, asker.device), own)
    if not nearest or place < nearest then best, nearest = want, place end
  end
  local after = sleep(asker, turn(nearest, redis.call('ZCARD', LINE) + (own and 0 or 1)))
  if period > 0 then
    join(asker.device, member_name(best, asker.device), now + after, asker.reach)
    redis.call('HSET', BATCH, 'w' .. best.batch, text(best.weight))
    redis.call('ZADD', TURN, 'NX', text(contest.newest), best.batch)
  end
  answer(FULL, 0, 0, nearest, after)
end

-- offered is what of the wants a place was offered for, if one was.
local function offered(asker)
  local member = withdraw(asker.device)
  for _, want in ipairs(member and asker.wants or {}) do
    if member_name(want, asker.device) == member then return want end
  end
end

local function serve(asker, tag)
  if not capacity then return answer(UNKNOWN, 0, 0, 0, 0) end
  local n, slot, how = holding(asker, tag)
  if slot then return answer(how, slot, n, 0, 0) end
  local alone = redis.call('ZCARD', LINE) == 0 and redis.call('ZCARD', OFFER) == 0
  if alone and held < capacity and #asker.wants == 1 then return grant(asker, asker.wants[1], tag) end
  mend()
  leave_overdue(now)
  local own = redis.call('HGET', PLACE, asker.device)
  local mine = offered(asker)
  local contest = contest_of(now, asker.wants, own, true)
  if mine and held < capacity then return grant_from_line(contest, asker, mine, tag) end
  table.sort(asker.wants, function(a, b) return sooner(contest, a, b) end)
  local free = places()
  for _, want in ipairs(asker.wants) do
    local a, member = contest[want.batch], member_name(want, asker.device)
    if free > kept or free > 0 and has_turn(now, contest, a, asker.device, member, free) then
      note_passed(contest, a, member)
      return grant_from_line(contest, asker, want, tag)
    end
  end
  line_up(contest, asker, own)
end

for i, asker in ipairs(askers) do serve(asker, ARGV[1] .. '.' .. i) end
if not capacity then return reply end
return hand_on(now, reply)
