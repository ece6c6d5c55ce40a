-- Functions of the scripts that are sent after keys.lua.

local function check(ok, what)
  if not ok then error('limits: bad ' .. what) end
end

-- The key of a subject ends with the id of its rule (12), ':' and its digest (22), and
-- that is its name among the reservations.
local function subject_name(key) return string.sub(key, -35) end
local function rule_name(key) return string.sub(key, -35, -24) end

-- clock is the time, as a number and as a text.
local function clock()
  local t = redis.call('TIME')
  local at = t[1] .. string.sub('00000' .. t[2], -6, -4) -- us to ms
  return tonumber(at), at
end

-- text of a whole number. Redis is given texts: it, and Lua without a format, write a
-- number as one with a fraction, which takes longer than a call.
local function text(n) return string.format('%d', n) end

-- known_since is since when (ms) a rule of this value is known; nil: it is not.
local function known_since(value)
  local since = value and string.match(value, '^known|(%d+)')
  return since and tonumber(since)
end

-- keep_known makes a rule that is used outlive its subjects. It lives for an hour at
-- least: one that is used now and then is not filled from the history each time. The epoch
-- of Redis in which it was filled stays with it.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end
local function keep_known(rule, since, longest, now)
  if now - since > longest / 2 then set_known(rule, longest, now) end
end

-- reservation is the name of one that was made at a time, which is a text.
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- others are when the reservations of a subject were made, one for each group but
-- the asker's.
local function others(key, group)
  local out, seen, subject = {}, {}, subject_name(key)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    local when, whose = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if whose ~= group and not seen[whose] then
      seen[whose] = true
      out[#out + 1] = tonumber(when)
    end
  end
  return out
end

-- nth is when the n-th newest start of a sliding subject was: in its packed times, or
-- in its list.
local function nth(packed, key, n)
  if packed then return tonumber(string.sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n)) end
  return tonumber(redis.call('LINDEX', key, n - 1) or nil)
end

-- window_shuts says whether one window of a sliding subject is shut now: for how
-- long, since when, and 1 if only by reservations. A third state, nil and true: a
-- time is yet to come, so the clock went back and the subject is in doubt.
local function window_shuts(packed, key, max, per, pending, now)
  local t = nth(packed, key, max)
  if t and t > now + AHEAD then return nil, true end
  if t and t > now - per then return t + per - now, now - t, 0 end
  if #pending == 0 then return nil end
  local p = 0
  for _, when in ipairs(pending) do if when > now - per then p = p + 1 end end
  t = p > 0 and p < max and nth(packed, key, max - p)
  if p >= max or t and t > now - per then return 0, 0, 1 end
end

-- word is a time as it is packed: later ones are greater as texts, too.
local function word(at) return string.format('%013.0f', at) end

-- pack writes a time into packed ones.
local function pack(packed, at, cap)
  local new, i = word(at), 1
  while string.sub(packed, i, i + DIGITS - 1) > new do i = i + DIGITS end
  return string.sub(string.sub(packed, 1, i - 1) .. new .. string.sub(packed, i), 1, DIGITS * cap)
end

-- insert puts a time into a list, newest first, and returns its length.
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

-- slide_count counts a start of a sliding subject, whose packed times are known.
local function slide_count(s, key, packed, at, now)
  if packed then return redis.call('SET', key, pack(packed, at, s.cap), 'PX', text(s.longest)) end
  trim(s.cap, text(s.longest), key, now, insert(key, at, now))
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
