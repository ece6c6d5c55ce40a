-- fill: fills an unknown rule with the starts of a history, one step in each call.
--
-- KEYS[1...3]  as in keys.lua
-- KEYS[4]      the rule
-- KEYS[5...]   the subjects of step "fill"
-- ARGV[1]  step: begin, fill, settle or known. "settle" settles no reservation: it lets settle.lua
--          count starts by this rule
-- ARGV[2]  token of the process that fills the rule: "epoch~name"
-- ARGV[3]  ms without a step after which another process may take over
--     Only for step "known":
-- ARGV[4]  spec of the rule
-- ARGV[5]  epoch of Redis
--     Only for step "fill":
-- ARGV[4]  spec of the rule
-- ARGV[5]  n, the number of leases
-- ARGV[6...]  n leases that were counted in the last minute; then for each subject:
--     earlier  number of starts of this subject in earlier calls
--     m        number of starts in this call
--     m times "ms since the start", newest first; for a rule of kind F or C, m is 1 and the text is
--              "ms since the newest start|number of starts"
-- Returns  a list of two numbers: a result and the time of Redis (ms)
--     1  the step is done
--     0  the rule is known already
--     2  another process fills the rule, or the step is not possible in this state
--
-- Invariants:
--   The steps are begin, fill (any number of times), settle, known, all with one token.
--   Before "settle" other scripts count no starts for this rule; after "settle" they do.
--   A step that is sent again changes nothing. "fill" after "settle" is refused, because it could
--   overwrite starts that were counted.

-- Result: the rule is known already.
local DONE_BEFORE = 0
-- Result: another process fills the rule, or the step is not possible in this state.
local BUSY = 2
-- Result: the step is done.
local OK = 1
local rule = KEYS[FIXED_KEYS + 1]
local step = ARGV[1]
local token = ARGV[2]
local takeover = tonumber(ARGV[3])
check(rule and takeover, 'argument')
local now = clock()
local state, at = read_rule_state(rule)
-- true if this process fills the rule.
local is_mine = state and state ~= 'known' and string.match(redis.call('GET', rule), '|([^|]*)$') == token

-- write_state: writes the state `state_name` of the rule with the current time and the token.
-- Returns OK.
local function write_state(state_name)
  redis.call('SET', rule, state_name .. '|' .. text(now) .. '|' .. token, 'PX', text(10 * takeover))
  return OK
end

-- keep_first: deletes what an earlier sending of this step added to a sliding subject: only the first
-- `earlier` starts stay. Returns them for a packed subject, and nil for a list.
local function keep_first(s, key, earlier)
  if s.kind == 'P' then
    return string.sub(redis.call('GET', key) or '', 1, DIGITS * earlier)
  end
  if earlier == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, earlier - 1)
  end
end

-- fill_subject: adds the starts from ARGV[i] on to a subject. Returns the index of the next subject
-- in ARGV.
local function fill_subject(s, key, i)
  local earlier = tonumber(ARGV[i])
  local n = tonumber(ARGV[i + 1])
  check(earlier and n and ARGV[i + 1 + n], 'start')
  i = i + 2
  if s.most then
    local ago, starts = string.match(ARGV[i], '^(%d+)|(%d+)$')
    local newest = now - tonumber(ago)
    -- The history does not contain the start of a fixed window. It is set to the newest start, the
    -- latest possible time, so the maximum is never exceeded.
    write_count(s, key, s.kind == 'C' and period_containing(s, now) or newest, tonumber(starts), now)
    return i + n
  end
  local packed = { keep_first(s, key, earlier) }
  for k = i, i + n - 1 do
    local at = now - tonumber(ARGV[k])
    if s.kind == 'P' then
      packed[#packed + 1] = packed_time(at)
    else
      redis.call('RPUSH', key, text(at))
    end
  end
  if s.kind == 'P' then
    redis.call('SET', key, table.concat(packed))
  end
  redis.call('PEXPIRE', key, text(s.longest))
  return i + n
end

-- do_fill: does the step "fill". Returns OK, or BUSY if the spec of a calendar contains no period for
-- this time.
local function do_fill()
  local s = read_spec(ARGV[4])
  local leases = tonumber(ARGV[5])
  check(leases, 'number')
  if s.kind == 'C' and not period_containing(s, now) then
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

-- do_known: does the step "known". Returns OK, or BUSY if the step "settle" has not been done.
local function do_known()
  if state ~= 'settling' then
    return BUSY
  end
  check(ARGV[5], 'epoch')
  set_known(rule, read_spec(ARGV[4]).longest, now, ARGV[5])
  return OK
end

-- do_step: does the step of this call. Returns OK, DONE_BEFORE or BUSY.
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

return { do_step(), now }
