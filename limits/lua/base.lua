-- base: functions for the scripts that count starts of tasks by rules (rate limits). They read and write the
-- states of rules, reservations (starts that count before they happen) and sliding windows. scripts.go puts
-- this file after keys.lua and times.lua.

-- subject_name: returns a short name of a subject (what a rule counts separately, for example one account).
-- It is the last 35 characters of `key`, the Redis key of the subject: the id of the rule (12 characters),
-- ':' and the digest of the subject (22 characters). Each member of KEYS[2] (reservations) begins with this
-- name.
local function subject_name(key)
  return string.sub(key, -35)
end

-- rule_name: returns the id of the rule (12 characters) to which a subject belongs. `key` is the Redis key of
-- the subject, which contains this id.
local function rule_name(key)
  return string.sub(key, -35, -24)
end

-- set_known: writes the state "known" into `rule`, the Redis key of a rule: from now on checks use its
-- counts. If epoch is nil, the key keeps its epoch; then its state must be "known" already. The TTL is at
-- least 2 * longest (ms), so that the key of the rule outlives the keys of its subjects. It is at least one
-- hour, so that a rarely used rule is not filled again before each use.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end

-- reservation: returns the member of KEYS[2] that reserves one start for one subject. key is the Redis key of
-- the subject, `at` the time of the reservation (ms, a text), lease the id of the start. group names the
-- group of alternative checks; at most one of them starts.
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- other_reservations: returns the times (ms) of the open reservations of one subject (starts that count
-- before they happen). key is the Redis key of the subject. The reservations of `group` are left out. Each
-- other group adds only one time, because the checks of a group are alternatives: at most one of them starts.
local function other_reservations(key, group)
  local times = {}
  local seen_groups = {}
  local subject = subject_name(key)
  -- '}' follows '|' in ASCII. So the range contains all members that begin with the subject and '|'.
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    -- The subject (35 characters) and '|' come before the time.
    local reserved_at, other_group = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if other_group ~= group and not seen_groups[other_group] then
      seen_groups[other_group] = true
      times[#times + 1] = tonumber(reserved_at)
    end
  end
  return times
end

-- check_window: decides whether one sliding window (at most `max` starts within `per` ms) allows one more
-- start of the subject whose Redis key is `key`.
--   pending  times (ms) of the open reservations of the subject (other_reservations)
-- Returns one of:
--   nil         the window allows a start
--   nil, true   the max-th newest start is in the future: the clock of Redis was set back
--   wait, ago, 0
--               counted starts fill the window. wait is the time (ms) until it allows a start. ago is the
--               age (ms) of the max-th newest start, whose expiry makes room
--   0, 0, 1     the window is full only together with the reservations; when they end is not known
local function check_window(key, max, per, pending, now)
  local t = nth_newest(key, max)
  if t and t > now + MAX_AHEAD then
    return nil, true
  end
  if t and t > now - per then
    return t + per - now, now - t, 0
  end
  if #pending == 0 then
    return nil
  end
  -- Number of open reservations that are inside the window.
  local reserved = 0
  for _, reserved_at in ipairs(pending) do
    if reserved_at > now - per then
      reserved = reserved + 1
    end
  end
  t = reserved > 0 and reserved < max and nth_newest(key, max - reserved)
  if reserved >= max or t and t > now - per then
    return 0, 0, 1
  end
end

-- delete_old_leases: deletes the ids of starts that were counted at least REMEMBER ms ago from KEYS[3], so
-- that KEYS[3] stays small. now is the time of Redis in ms.
local function delete_old_leases(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- record_counted: records in KEYS[3] that the rule with this id has counted the start with the id `lease`.
-- Returns true. If KEYS[3] has this record already, it returns false, and the caller must not count the start
-- again.
local function record_counted(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then
    return false
  end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end
