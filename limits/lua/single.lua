-- single: may this start? One check of one sliding window, which is what is asked
-- most: reserve.lua in one go.
-- KEYS     keys.lua; then rule and subject
-- ARGV     mode, after how long (ms) a reservation must have been settled, lease,
--          group; then the spec: kind, max, per
-- Returns  as reserve.lua
-- Keeps    what reserve.lua keeps.
local call = redis.call
local mode, lease, group = ARGV[1], ARGV[3], ARGV[4]
local settle_ms, max, per = tonumber(ARGV[2]), tonumber(ARGV[6]), tonumber(ARGV[7])
if not (settle_ms and max and per) then error('limits: bad argument') end
local rule, subject = KEYS[FIRST + 1], KEYS[FIRST + 2]

local t = call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local oldest = call('ZRANGE', OPEN, 0, 0, 'WITHSCORES')[2] -- reservation of all

if mode == 'R' and (oldest and call('ZSCORE', OPEN, lease)
    or call('ZSCORE', DONE, string.sub(rule, -12) .. '|' .. lease)) then
  return { now, PASSED, 0 } -- it was sent again
end
if oldest and now - oldest >= settle_ms then return { now, UNSETTLED, 0 } end

local state, packed
if ARGV[5] == 'P' then
  local both = call('MGET', rule, subject)
  state, packed = both[1], both[2] or ''
else
  state = call('GET', rule)
end
local since = state and string.match(state, '^known|(%d+)')
if not since then return { now, UNKNOWN, 1, 0, 0, 0, 0, 0 } end

local function nth(n)
  if packed then return tonumber(string.sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n)) end
  return tonumber(call('LINDEX', subject, n - 1) or nil)
end

local at = nth(max)
if at and at > now + AHEAD then -- the clock went back
  if mode ~= 'P' then call('DEL', rule) end
  return { now, UNKNOWN, 1, 0, 0, 0, 0, 0 }
elseif at and at > now - per then
  return { now, LIMITED, 1, 0, 0, at + per - now, now - at, 0 }
end
if oldest then
  local p = 0
  for _, when in ipairs(base()(subject, group)) do if when > now - per then p = p + 1 end end
  at = p > 0 and p < max and nth(max - p)
  if p >= max or at and at > now - per then return { now, LIMITED, 1, 0, 0, 0, 0, 1 } end
end

if mode == 'R' then
  call('ZADD', OPEN, now, lease)
  call('ZADD', PENDING, 0, string.sub(subject, -35) .. '|' .. string.format('%.0f', now) .. '|' .. group .. '|' .. lease)
elseif mode == 'T' then
  local word = string.format('%013.0f', now)
  if packed and string.sub(packed, 1, DIGITS) <= word then
    call('SET', subject, word .. string.sub(packed, 1, DIGITS * max - DIGITS), 'PX', per)
  else
    local _, slide_count = base()
    slide_count({ cap = max, longest = per }, subject, packed, now, now)
  end
  if now - since > per / 2 then
    local _, _, set_known = base()
    set_known(rule, per, now)
  end
end
return { now, PASSED, 0 }
