-- acquire: a slot for a device that wants one for any of some tasks; else its
-- place in line.
-- KEYS     the pool (pool.lua, line.lua)
-- ARGV     call id, how long a slot is usually held, the shortest and the longest
--          time after which to ask again (ms; longest 0 = no line); then per device: device, chance
--          (0..1000), number of wants; and per want: lease, ttl_ms, batch,
--          weight, priority, task
-- Returns  per device: status, slot, number of the want that got it, position
--          in line, ms after which to ask again (the last two: FULL)
-- Keeps    held < capacity before every grant; a lease holds at most one slot.
--          Holders whose lease ended still count: only a release frees.
--          With a free place the asker is refused only for waiters who come
--          before it in the order and are expected (line.lua).
local UNKNOWN, FULL, ACQUIRED, HELD = 0, 1, 2, 3

local hold_ms = integer(ARGV[2], 0, 2 ^ 52, 'hold time')
local soonest = integer(ARGV[3], 0, 2 ^ 52, 'shortest time')
local period = integer(ARGV[4], soonest, 2 ^ 52, 'longest time')

-- read_asker reads one device's part of the arguments, from at on.
local function read_asker(at)
  check(ARGV[at + 2], 'number of arguments')
  local asker = { device = ARGV[at], chance = integer(ARGV[at + 1], 0, 1000, 'chance'), wants = {} }
  for n = 1, integer(ARGV[at + 2], 1, MAX_BATCHES, 'number of wants') do
    local i = at + 6 * n - 3
    check(ARGV[i + 5], 'number of arguments')
    asker.wants[n] = {
      n = n, lease = ARGV[i], ttl = integer(ARGV[i + 1], 1, 2 ^ 52, 'ttl'),
      batch = number_name(integer(ARGV[i + 2], 0, 2 ^ 53, 'batch')), weight = integer(ARGV[i + 3], 1, 2 ^ 20, 'weight'),
      priority = integer(ARGV[i + 4], -2 ^ 30, 2 ^ 30, 'priority'), task = integer(ARGV[i + 5], 0, 2 ^ 53, 'task'),
    }
  end
  return asker, at + 3 + 6 * #asker.wants
end

local askers, at = {}, 5
while ARGV[at] do
  local asker
  asker, at = read_asker(at)
  askers[#askers + 1] = asker
end

local now = now_ms() -- capacity and held: alone.lua
local window = math.min(math.floor(hold_ms / 40), LONGEST)
local kept = capacity and math.min(math.max(math.floor(capacity / LARGE), 1), MAX_KEPT)
local patience = capacity and math.max(capacity, 3)
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

-- is_urgent says whether a place is kept longer for a waiter of a batch:
-- it comes first and was passed over often enough, or the batch has nothing yet
-- and the pool is so large that one place more or less is little.
local function is_urgent(b, member)
  return member == b.head and b.passed >= patience or b.held == 0 and capacity >= LARGE
end

-- expected counts the waiters of a batch who are likely to come while a place is
-- kept for them, at most as many as are free, and only those before a member.
local function expected(b, device, member)
  local top = member and '(' .. member or '(' .. b.name .. '}'
  local first = redis.call('ZRANGEBYLEX', LINE, '[' .. b.name, top, 'LIMIT', 0, LOOK)
  local devices = {}
  for i, m in ipairs(first) do devices[i] = device_of_member(m) end
  local n = 0
  for i, due in ipairs(#devices > 0 and redis.call('ZMSCORE', DUE, unpack(devices)) or {}) do
    local ahead, behind = window, window + LATE
    if is_urgent(b, first[i]) then ahead, behind = LONGEST, LONGEST end
    due = due and score(due) or 0
    if devices[i] ~= device and due >= now - behind and due <= now + ahead then n = n + 1 end
  end
  return n
end

-- has_turn says whether one of the free places is the asker's.
local function has_turn(contest, asker, want)
  local places = capacity - held
  local a = contest[want.batch]
  local k = expected(a, asker.device, member_name(want, asker.device)) + 1
  local function wanting(b)
    b.expected = b.expected or expected(b, asker.device)
    return b.expected
  end
  return k <= places and turn_of(contest, a, k, wanting) <= places
end

-- note_passed counts for each batch that its first waiter is passed over by this
-- grant, up to where a place is kept for it longer.
local function note_passed(contest, a, member)
  for _, b in ipairs(contest.all) do
    local passed = b.head and (b == a and b.head < member or b ~= a and before(b, a))
    if passed and b.passed < patience then
      redis.call('HSET', BATCH, 'p' .. b.name, text(b.passed + 1) .. '|' .. b.head)
    end
  end
end

local function grant(asker, want, tag)
  local slot = redis.call('ZRANGEBYSCORE', FREE_AT, 0, 0, 'LIMIT', 0, 1)[1]
  hold(slot, want.lease, asker.device, want.batch, tag, now, now + want.ttl)
  held = held + 1
  answer(ACQUIRED, slot, want.n, 0, 0)
end

-- grant_before_others is a grant while others wait.
local function grant_before_others(contest, asker, want, tag)
  local a = contest[want.batch]
  note_passed(contest, a, member_name(want, asker.device))
  redis.call('ZADD', TURN, text(a.turn + math.floor(UNIT / a.weight)), a.name)
  if a.waiting > 0 then redis.call('HSET', BATCH, 'w' .. a.name, text(a.weight)) end
  leave(asker.device)
  grant(asker, want, tag)
end

-- line_up refuses: the asker stands in line for what comes first, and is told to
-- ask again when that is likely.
local function line_up(contest, asker, own)
  local best, nearest
  for _, want in ipairs(asker.wants) do
    local place = position(contest, want, member_name(want, asker.device), own)
    if not nearest or place < nearest then best, nearest = want, place end
  end
  local wait = capacity > 0 and math.min(nearest * hold_ms / capacity, period) or period
  local after = math.max(math.floor(wait * (900 + asker.chance / 5) / 1000), soonest)
  if period > 0 then
    join(asker.device, member_name(best, asker.device), now + after)
    redis.call('HSET', BATCH, 'w' .. best.batch, text(best.weight))
    redis.call('ZADD', TURN, 'NX', text(contest.newest), best.batch)
  end
  answer(FULL, 0, 0, nearest, after)
end

local function serve(asker, tag)
  if not capacity then return answer(UNKNOWN, 0, 0, 0, 0) end
  local n, slot, how = holding(asker, tag)
  if slot then return answer(how, slot, n, 0, 0) end
  local alone = redis.call('ZCARD', LINE) == 0
  if alone and held < capacity and #asker.wants == 1 then return grant(asker, asker.wants[1], tag) end
  mend()
  leave_overdue(now, period)
  local own = redis.call('HGET', PLACE, asker.device)
  local contest = contest_of(now, asker.wants, own, true)
  table.sort(asker.wants, function(a, b) return sooner(contest, a, b) end)
  for _, want in ipairs(asker.wants) do
    if capacity - held > kept or held < capacity and has_turn(contest, asker, want) then
      return grant_before_others(contest, asker, want, tag)
    end
  end
  line_up(contest, asker, own)
end

for i, asker in ipairs(askers) do serve(asker, ARGV[1] .. '.' .. i) end
return reply
