-- What the scripts share; it is sent in front of each of them.
--
-- KEYS   1 open     ZSET  lease -> when it was reserved (ms): not settled yet
--        2 pending  ZSET  "subject|when|group|lease", scores 0: what they reserved
--        3 done     ZSET  "rule|lease" -> when it was counted: in the last minute
--        4, 5 top   ZSET  what was refused -> how often, of even and odd hours
--        6 hour     the hour of the latest refusal
--        then two for each item (but in restore): rule, subject
-- rule   "known|when" once what it counted is believed; "filling|when|token" and
--        "settling|when|token" while a history is being read. Missing: not believed.
-- subject, by the spec of its rule, all times in ms:
--   "Z cap longest max per ..."  ZSET lease -> when       the newest cap of them
--   "L cap longest max per ..."  LIST when, newest first  the newest cap of them
--   "F max per"                  "since|n"                a window and its count
--   "C max longest start ..."    "since|n"                likewise; where periods start
--
-- Only what is counted stands in a subject; what is reserved stands in pending.
-- So nothing has to be taken back from a subject.
-- Time is Redis TIME. A TTL only removes what has no effect any more.
-- A script checks its arguments before its first write: nothing rolls back.

local OPEN, PENDING, DONE, HOUR = KEYS[1], KEYS[2], KEYS[3], KEYS[6]
local FIRST = 6         -- keys before those of the items
local REMEMBER = 60000  -- how long a count is known by its lease
local AHEAD = 1000      -- a time further ahead than this is of a clock that went back

local function check(ok, what)
  if not ok then error('limits: bad ' .. what) end
end

-- The key of a subject ends with the id of its rule (12), ':' and its digest (22), and
-- that is its name among the reservations.
local function subject_name(key) return string.sub(key, -35) end
local function rule_name(key) return string.sub(key, -35, -24) end

local function text(n) return string.format('%.0f', n) end

local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local specs = {}

-- read_spec reads the spec of a rule, once in a call.
local function read_spec(line)
  if specs[line] then return specs[line] end
  local n = {}
  for word in string.gmatch(line, '%S+') do n[#n + 1] = tonumber(word) or word end
  local s = { kind = n[1] }
  if s.kind == 'Z' or s.kind == 'L' then
    check(#n > 4 and #n % 2 == 1, 'spec')
    s.cap, s.longest, s.windows = n[2], n[3], (#n - 3) / 2
    s.max, s.per = {}, {}
    for i = 1, s.windows do s.max[i], s.per[i] = n[2 * i + 2], n[2 * i + 3] end
  elseif s.kind == 'F' then
    check(#n == 3, 'spec')
    s.most, s.longest = n[2], n[3]
  else
    check(s.kind == 'C' and #n > 4, 'spec')
    s.most, s.longest, s.starts = n[2], n[3], { unpack(n, 4) }
  end
  specs[line] = s
  return s
end

-- state of a rule, and since when (ms) it is in it.
local function state_of(rule)
  local value = redis.call('GET', rule)
  if not value then return nil end
  local state, at = string.match(value, '^(%a+)|(%d+)')
  return state, tonumber(at)
end

-- period finds where the period around a time begins and ends, if it is known.
local function period(s, at)
  for i = 1, #s.starts - 1 do
    if at >= s.starts[i] and at < s.starts[i + 1] then return s.starts[i], s.starts[i + 1] end
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

-- insert puts a time into a list, newest first.
local function insert(key, at, now)
  if at == now then return redis.call('LPUSH', key, text(at)) end
  local head = tonumber(redis.call('LINDEX', key, 0) or nil)
  if not head or at >= head then return redis.call('LPUSH', key, text(at)) end
  local i, other = 1, head
  while other and other > at do
    other = tonumber(redis.call('LINDEX', key, i) or nil)
    i = i + 1
  end
  if other then return redis.call('LINSERT', key, 'BEFORE', text(other), text(at)) end
  return redis.call('RPUSH', key, text(at))
end

-- trim keeps what can still matter.
local function trim(s, key, now, length)
  if s.kind == 'Z' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now - s.longest))
    redis.call('ZREMRANGEBYRANK', key, 0, -s.cap - 1)
  elseif length > s.cap then
    redis.call('LTRIM', key, 0, s.cap - 1)
  elseif length % 4 == 0 then
    for _ = 1, 8 do -- more than were added since, so that this keeps up
      local last = tonumber(redis.call('LINDEX', key, -1) or nil)
      if not last or last > now - s.longest then break end
      redis.call('RPOP', key)
    end
  end
  redis.call('PEXPIRE', key, text(s.longest))
end

-- forget_old makes room among the counts that are known by their leases.
local function forget_old(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- remember notes that a rule counted a lease; false: it did before.
local function remember(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then return false end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end

-- count adds one start at a time to a subject.
local function count(s, key, at, lease, now)
  if s.kind == 'Z' then
    redis.call('ZADD', key, 'NX', text(at), lease)
    return trim(s, key, now)
  elseif s.kind == 'L' then
    return trim(s, key, now, insert(key, at, now))
  end
  local since, n = read_count(key)
  if s.kind == 'F' then
    -- What comes late, from before the window, counts in it.
    if not since or at >= since + s.longest then since, n = at, 0 end
    return write_count(s, key, since, n + 1, now)
  end
  local from = period(s, at)
  if not from or since and since > from then return end -- of a period that is over
  if since ~= from then n = 0 end
  write_count(s, key, from, n + 1, now)
end
