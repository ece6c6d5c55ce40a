-- base: functions about rules, reservations and sliding windows. scripts.go puts this file after
-- keys.lua and times.lua.

-- subject_name: returns the name of a subject in KEYS[2]: the last 35 characters of its key, the id
-- of the rule (12), ':' and the digest of the subject (22).
local function subject_name(key)
  return string.sub(key, -35)
end

-- rule_name: returns the id of the rule (12 characters) from the key of a subject.
local function rule_name(key)
  return string.sub(key, -35, -24)
end

-- set_known: writes the state "known" into the key of the rule. If epoch is nil, the stored epoch
-- is kept; then the rule must be known. The TTL is at least twice `longest`, so the rule outlives
-- its subjects, and at least one hour, so a rule that is rarely used is not filled again for each
-- use.
local function set_known(rule, longest, now, epoch)
  epoch = epoch or string.match(redis.call('GET', rule), '^known|%d+|(.*)$')
  redis.call('SET', rule, 'known|' .. text(now) .. '|' .. epoch, 'PX', text(math.max(2 * longest, 3600000)))
end

-- reservation: returns the member of KEYS[2] for a reservation of the subject `key`. `at` is the
-- time of the reservation, a text.
local function reservation(key, at, group, lease)
  return subject_name(key) .. '|' .. at .. '|' .. group .. '|' .. lease
end

-- other_reservations: returns the times of the open reservations of the subject `key`: one time for
-- each group other than `group`, because at most one check of a group starts.
local function other_reservations(key, group)
  local times = {}
  local seen_groups = {}
  local subject = subject_name(key)
  -- '}' is the character after '|', so the range contains all members of the subject.
  for _, member in ipairs(redis.call('ZRANGEBYLEX', PENDING, '[' .. subject .. '|', '(' .. subject .. '}')) do
    -- The time follows after the subject and '|', 36 characters.
    local reserved_at, other_group = string.match(string.sub(member, 37), '^(%d+)|([^|]*)|')
    if other_group ~= group and not seen_groups[other_group] then
      seen_groups[other_group] = true
      times[#times + 1] = tonumber(reserved_at)
    end
  end
  return times
end

-- check_window: evaluates one window (max starts in per ms) of a sliding subject. packed and key
-- are as in nth_newest. pending lists the times of the reservations of other groups. Returns one of:
--   nil              the window allows a start
--   wait, ago, only_reserved
--                    the window refuses a start. wait: ms until it allows a start. ago: ms since the
--                    oldest start that blocks it. only_reserved: 1 if only reservations block the
--                    window, and then wait and ago are 0; else 0
--   nil, true        the max-th newest start is in the future: the clock was set back
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
  -- reserved is the number of reservations inside the window.
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

-- delete_old_leases: deletes the counted leases that are older than REMEMBER from KEYS[3].
local function delete_old_leases(now)
  redis.call('ZREMRANGEBYSCORE', DONE, '-inf', text(now - REMEMBER))
end

-- record_counted: records in KEYS[3] that the rule `id` has counted the lease. Returns true, or
-- false if the rule had counted the lease before; then nothing is written.
local function record_counted(id, lease, now)
  if redis.call('ZADD', DONE, 'NX', text(now), id .. '|' .. lease) == 0 then
    return false
  end
  redis.call('PEXPIRE', DONE, REMEMBER)
  return true
end
