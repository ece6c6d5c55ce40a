-- single: may this start? One check of one sliding window, which is what is asked
-- most: reserve.lua without what only others need.
-- KEYS     base.lua; then rule and subject
-- ARGV     mode, after how long (ms) a reservation must have been settled, lease,
--          group, label; then the spec: kind, cap, longest, max, per
-- Returns  as reserve.lua
-- Keeps    what reserve.lua keeps.
local mode, settle_ms, lease, group = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local s = { kind = ARGV[6], cap = tonumber(ARGV[7]), longest = tonumber(ARGV[8]) }
local max, per = tonumber(ARGV[9]), tonumber(ARGV[10])
check(settle_ms and s.cap and s.longest and max and per, 'argument')

local rule, subject = KEYS[FIRST + 1], KEYS[FIRST + 2]
local id, now = rule_name(subject), now_ms()
local oldest = redis.call('ZRANGE', OPEN, 0, 0, 'WITHSCORES')[2] -- of all reservations

local function passed_before()
  return oldest and redis.call('ZSCORE', OPEN, lease) or redis.call('ZSCORE', DONE, id .. '|' .. lease)
end

-- read finds since when the rule is believed, and the packed times if it has such.
local function read()
  if s.kind ~= 'P' then return known_since(redis.call('GET', rule)) end
  local both = redis.call('MGET', rule, subject)
  return known_since(both[1]), both[2] or ''
end

local function pass(since, packed)
  if mode == 'R' then
    redis.call('ZADD', OPEN, text(now), lease)
    redis.call('ZADD', PENDING, 0, reservation(subject, now, group, lease))
  elseif mode == 'T' and remember(id, lease, now) then
    if now % 16 == 0 then forget_old(now) end -- often enough
    slide_count(s, subject, packed, now, now)
    keep_known(rule, since, s.longest, now)
  end
  return PASSED
end

local function serve()
  if mode == 'R' and passed_before() then return PASSED end
  if oldest and now - oldest >= settle_ms then return UNSETTLED end
  local since, packed = read()
  if not since then return UNKNOWN, 0, 0, 0 end
  local wait, ago, soft = window_shuts(packed, subject, max, per, oldest and others(subject, group) or {}, now)
  if wait then
    if mode == 'T' and passed_before() then return PASSED end
    if mode ~= 'P' and soft == 0 then note(ARGV[5], now) end
    return LIMITED, wait, ago, soft
  elseif ago then
    if mode ~= 'P' then redis.call('DEL', rule) end
    return UNKNOWN, 0, 0, 0
  end
  return pass(since, packed)
end

local status, wait, ago, soft = serve()
if not wait then return { now, status, 0 } end
return { now, status, 1, 0, 0, wait, ago, soft }
