-- fill: fills a rule (a rate limit) whose earlier starts Redis does not have. A process reads these starts
-- from the history in the ledger (the SQL database), and this script stores them in Redis. Each call does one
-- step.
--
-- KEYS[1...3]  as in keys.lua
-- KEYS[4]      the key of the rule
-- KEYS[5...]   only for the step "fill": the keys of the subjects
-- ARGV[1]  the step: begin, fill, settle or known. The step "settle" only changes the state of the rule to
--          "settling". In this state, settle.lua counts starts by the rule
-- ARGV[2]  token of the process that fills the rule: "epoch~name"
-- ARGV[3]  time in ms. If this process does no step for this time, another process may fill the rule instead
--     Only for the step "known":
-- ARGV[4]  spec of the rule (keys.lua)
-- ARGV[5]  epoch of Redis
--     Only for the step "fill":
-- ARGV[4]  spec of the rule (keys.lua). The starts of a calendar rule are those of the second period in it
-- ARGV[5]  n, the number of leases (ids of starts) that follow
-- ARGV[6...]  n leases (ids of starts) of the last minute. They are followed, for each subject, by:
--     earlier  number of starts of this subject that earlier calls sent
--     m        number of starts of this subject in this call; 1 for a rule of the kind F or C
--     m texts  the age of each start in ms, newest start first. For a rule of the kind F or C, the only
--              text is "age of the newest start in ms|number of starts"
-- Returns  a list of two numbers: the time of Redis (ms), then the result of the step:
--     1  the step is done
--     0  the rule is known already
--     2  another process fills the rule, or its state or spec does not allow the step
--
-- Invariants:
--   A process does the steps in this order, with one token: begin, fill (any number of times), settle,
--   known.
--   Other scripts count starts by this rule only after the step "settle".
--   If a step is sent again, it changes nothing. After the step "settle", the step "fill" is refused,
--   because it could overwrite starts that other scripts have counted.

-- Result of a step: the rule is known already, so the step was not done.
local DONE_BEFORE = 0
-- Result of a step: the step was not done, because another process fills the rule, or because the state or the
-- spec of the rule does not allow the step.
local BUSY = 2
-- Result of a step: the step is done.
local OK = 1
local rule = KEYS[FIXED_KEYS + 1]
local step = ARGV[1]
local token = ARGV[2]
local takeover = tonumber(ARGV[3])
check(rule and takeover, 'argument')
local now = clock()
local state, at = read_rule_state(rule)
-- The state in the key of the rule ends with the token of the process that fills it.
local is_mine = state and state ~= 'known' and string.match(redis.call('GET', rule), '|([^|]*)$') == token

-- write_state: writes the state of the rule ("filling" or "settling"), the current time and the token to the key
-- of the rule. The time shows other processes that this process still works. Returns OK.
local function write_state(state_name)
  redis.call('SET', rule, state_name .. '|' .. text(now) .. '|' .. token, 'PX', text(10 * takeover))
  return OK
end

-- keep_first: keeps the first `earlier` starts in the Redis list `key`, which earlier calls have stored. It deletes
-- any later starts, because this call may have been sent before and have stored them.
local function keep_first(key, earlier)
  if earlier == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, text(earlier - 1))
  end
end

-- fill_subject: stores the starts of one subject. ARGV[i] is the first argument of the subject, s is the spec
-- table of the rule, and key is the Redis key of the subject. Returns the index in ARGV at which the next
-- subject begins.
local function fill_subject(s, key, i)
  local earlier = tonumber(ARGV[i])
  local n = tonumber(ARGV[i + 1])
  check(earlier and n and ARGV[i + 1 + n], 'start')
  i = i + 2
  if s.most then
    local ago, starts = string.match(ARGV[i], '^(%d+)|(%d+)$')
    local newest = now - tonumber(ago)
    -- The history does not say when a fixed window (F) began. The time of the newest start is the latest
    -- possible time. With it, the rule never allows more starts than its maximum.
    write_count(s, key, s.kind == 'C' and s.starts[2] or newest, tonumber(starts), now)
    return i + n
  end
  keep_first(key, earlier)
  for k = i, i + n - 1 do
    redis.call('RPUSH', key, text(now - tonumber(ARGV[k])))
  end
  redis.call('PEXPIRE', key, text(s.longest))
  return i + n
end

-- do_fill: does the step "fill". It returns BUSY if the calendar period of the starts is not the current one,
-- because it ended after the process had begun to fill the rule.
local function do_fill()
  local s = read_spec(ARGV[4])
  local leases = tonumber(ARGV[5])
  check(leases, 'number')
  if s.kind == 'C' and period_containing(s, now) ~= s.starts[2] then
    return BUSY
  end
  delete_old_leases(now)
  for i = 6, 5 + leases do
    record_counted(string.sub(rule, -12), ARGV[i], now)
  end
  local i = 6 + leases
  for k = FIXED_KEYS + 2, #KEYS do
    i = fill_subject(s, KEYS[k], i)
  end
  return write_state('filling')
end

-- do_known: does the step "known". It changes the state of the rule from "settling" to "known", so that checks
-- use the counts of the rule. In any other state it returns BUSY.
local function do_known()
  if state ~= 'settling' then
    return BUSY
  end
  check(ARGV[5], 'epoch')
  set_known(rule, read_spec(ARGV[4]).longest, now, ARGV[5])
  return OK
end

-- do_step: does the step that ARGV[1] names, and returns its result.
local function do_step()
  if state == 'known' then
    return DONE_BEFORE
  end
  if step == 'begin' then
    if state and not is_mine and now - at < takeover then
      return BUSY
    end
    return write_state('filling')
  end
  if not is_mine then
    return BUSY
  end
  if step == 'settle' then
    return write_state('settling')
  end
  if step == 'known' then
    return do_known()
  end
  check(step == 'fill', 'step')
  return state == 'filling' and do_fill() or BUSY
end

return { now, do_step() }
