-- base: functions for the scripts that count starts of tasks by rules (rate limits). scripts.go puts this
-- file after keys.lua and times.lua.

-- subject_name: returns the last 35 characters of `key`, the Redis key of a subject: the id of the rule (12
-- characters), ':' and the digest of the subject (22). Each member of KEYS[2] begins with this short name.
local function subject_name(key)
  return string.sub(key, -35)
end

-- rule_name: returns the id of the rule (12 characters) from `key`, the Redis key of a subject.
local function rule_name(key)
  return string.sub(key, -35, -24)
end

-- set_known: writes the state "known" into `rule`, the Redis key of a rule. If epoch is nil, the rule must be
-- known already, and the key keeps its epoch. The TTL is at least 2 * longest (ms), so that the key outlives
-- the keys of its subjects. It is also at least one hour, so that a rarely used rule is not filled before each
-- use.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end

-- reservation: returns the member of KEYS[2] for a reserved start of the subject with the Redis key `key`.
--   at     time of the reservation (ms, as text)
--   group  group of the check that made the reservation
--   lease  id of the start
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- other_reservations: returns the times (ms) of the open reservations of the subject with the Redis key `key`,
-- without the reservations of `group`. It returns one time for each other group, because at most one check of
-- a group leads to a start.
local function other_reservations(key, group)
  local times = {}
  local seen_groups = {}
  local subject = subject_name(key)
  -- '}' follows '|' in ASCII, so the range contains all members that begin with the subject and '|'.
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    local reserved_at, other_group = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if other_group ~= group and not seen_groups[other_group] then
      seen_groups[other_group] = true
      times[#times + 1] = tonumber(reserved_at)
    end
  end
  return times
end

-- check_window: decides whether a sliding window (at most `max` starts within `per` ms) allows one more start
-- of the subject with the Redis key `key`. pending lists the times (ms) of its open reservations. Returns:
--  nil           the window allows a start
--  nil, true     a stored time is in the future, because the clock of Redis was set back
--  wait, ago, 0  counted starts fill the window. It allows a start in `wait` ms, when the start that is `ago` ms
--                old now leaves the window
--  0, 0, 1       counted starts and reservations together fill the window. Nobody knows when the reservations
--                end, so wait and ago are 0
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

-- delete_old_leases: deletes from KEYS[3] the starts that were counted at least REMEMBER ms ago.
local function delete_old_leases(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- record_counted: records in KEYS[3] that the rule with this id has counted the start `lease`. It returns false
-- if KEYS[3] contains this record already. Then the caller must not count the start again.
local function record_counted(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then
    return false
  end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end
