-- Functions of the scripts that are sent after keys.lua; this follows times.lua.

-- The key of a subject ends with the id of its rule (12), ':' and its digest (22), and
-- that is its name among the reservations.
local function subject_name(key)
  return string.sub(key, -35)
end

local function rule_name(key)
  return string.sub(key, -35, -24)
end

-- set_known makes a rule known, and outlive its subjects. It lives for an hour at
-- least: one that is used now and then is not filled from the history each time. The epoch
-- of Redis in which it was filled stays with it.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end

-- reservation is the name of one that was made at a time, which is a text.
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- others are when the reservations of a subject were made, one for each group but
-- the asker's.
local function others(key, group)
  local out = {}
  local seen = {}
  local subject = subject_name(key)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    local when, whose = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if whose ~= group and not seen[whose] then
      seen[whose] = true
      out[#out + 1] = tonumber(when)
    end
  end
  return out
end

-- window_shuts says whether one window of a sliding subject is shut now: for how
-- long, since when, and 1 if only by reservations. A third state, nil and true: a
-- time is yet to come, so the clock went back and the subject is in doubt.
local function window_shuts(packed, key, max, per, pending, now)
  local t = nth(packed, key, max)
  if t and t > now + AHEAD then
    return nil, true
  end
  if t and t > now - per then
    return t + per - now, now - t, 0
  end
  if #pending == 0 then
    return nil
  end
  local p = 0
  for _, when in ipairs(pending) do
    if when > now - per then
      p = p + 1
    end
  end
  t = p > 0 and p < max and nth(packed, key, max - p)
  if p >= max or t and t > now - per then
    return 0, 0, 1
  end
end

-- forget_old makes room among the counts that are known by their leases.
local function forget_old(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- remember notes that a rule counted a lease; false: it did before.
local function remember(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then
    return false
  end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end
