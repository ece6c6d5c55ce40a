-- base: helper functions for the scripts that count starts of tasks by rules (rate limits). They handle the
-- states of rules, reservations (starts that are counted before they happen) and sliding windows. scripts.go
-- puts this file after keys.lua and times.lua.

-- subject_name: returns the short name of a subject (what a rule counts separately, for example one account).
-- The members of KEYS[2], the reservations, begin with this name. It is the last 35 characters of `key`, the
-- Redis key of the subject: the id of the rule (12 characters), ':' and the digest of the subject (22
-- characters).
local function subject_name(key)
  return string.sub(key, -35)
end

-- rule_name: returns the id of a rule (12 characters). `key` is the Redis key of a subject of the rule; it
-- contains this id.
local function rule_name(key)
  return string.sub(key, -35, -24)
end

-- set_known: writes the state "known" into `rule`, the Redis key of a rule. The state says that Redis has all
-- counts of the rule. If epoch is nil, set_known keeps the epoch that the key contains; then the state must
-- be "known" already. The TTL of the key is at least 2 * longest (ms), so the key of the rule outlives the
-- keys of its subjects. It is also at least one hour, so a rarely used rule need not be filled again before
-- each use.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end

-- reservation: returns the member of KEYS[2] (the reservations) that reserves one start for one subject. key
-- is the Redis key of the subject, `at` the time of the reservation in ms (a text), lease the id of the
-- start, and group the group of its check. Checks of one group are alternatives: at most one of them starts.
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- other_reservations: returns the times (ms) of the open reservations of one subject that other groups than
-- `group` made. key is the Redis key of the subject. For each other group the list has one time, because at
-- most one check of a group starts.
local function other_reservations(key, group)
  local times = {}
  local seen_groups = {}
  local subject = subject_name(key)
  -- In ASCII '}' follows '|', so the range contains all members that begin with the subject and '|'.
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    -- The subject and '|' have 36 characters, so the time begins at character 37.
    local reserved_at, other_group = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if other_group ~= group and not seen_groups[other_group] then
      seen_groups[other_group] = true
      times[#times + 1] = tonumber(reserved_at)
    end
  end
  return times
end

-- check_window: reports whether one sliding window (at most `max` starts within `per` ms) allows one more
-- start of the subject with the Redis key `key`.
--   packed   one text with the times of the counted starts, 13 digits each, newest first; nil if they are in
--            the Redis list `key`
--   pending  times (ms) of the reservations that other groups of checks made for the subject
-- Returns one of:
--   nil         the window allows a start
--   nil, true   the max-th newest start is in the future: the clock of Redis was set back
--   wait, ago, only_reserved
--               the window refuses a start. wait is the time (ms) until it allows a start. ago is the
--               age (ms) of the oldest start that blocks it. only_reserved is 0. If the window has
--               room without the reservations, only_reserved is 1, and wait and ago are 0
local function check_window(packed, key, max, per, pending, now)
  local t = nth_newest(packed, key, max)
  if t and t > now + MAX_AHEAD then
    return nil, true
  end
  if t and t > now - per then
    return t + per - now, now - t, 0
  end
  if #pending == 0 then
    return nil
  end
  -- Number of other groups' reservations that were made inside the window.
  local reserved = 0
  for _, reserved_at in ipairs(pending) do
    if reserved_at > now - per then
      reserved = reserved + 1
    end
  end
  t = reserved > 0 and reserved < max and nth_newest(packed, key, max - reserved)
  if reserved >= max or t and t > now - per then
    return 0, 0, 1
  end
end

-- delete_old_leases: forgets which starts were counted at least REMEMBER ms ago: it deletes their leases
-- (ids) from KEYS[3]. now is the time of Redis in ms.
local function delete_old_leases(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- record_counted: records in KEYS[3] (the counted starts) that the rule with this id has counted the start
-- with this lease (id of the start), and returns true. If KEYS[3] contains this record already,
-- record_counted writes nothing and returns false, so that no start is counted twice.
local function record_counted(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then
    return false
  end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end
