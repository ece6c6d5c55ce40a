-- fill: what a rule counted before, from a history, so that it may be known.
-- KEYS     keys.lua; then the rule, and the subjects of a "fill"
-- ARGV     step, token of the process that fills, after how long (ms) another may take over,
--          and of "known": spec, epoch of Redis; of a "fill": spec, number of leases, leases that were counted in the
--          last
--          minute; then per subject: how many of its starts were sent before, number of
--          starts, and per start, newest first: ms ago; of rules that only count: 0, 1,
--          "ms since the newest|how many there were"
-- Returns  1 = done, 0 = the rule is known already, 2 = another one fills it; now (ms)
-- Keeps    begin -> fill ... -> settle -> known, by one token: while it is filled
--          others count nothing, from "settle" on they do, and at "known" it is
--          known. A step that is sent again changes nothing, but "fill" after
--          "settle" is refused: it could overwrite.
local DONE_BEFORE = 0
local BUSY = 2
local OK = 1
local rule = KEYS[FIRST + 1]
local step = ARGV[1]
local token = ARGV[2]
local takeover = tonumber(ARGV[3])
check(rule and takeover, 'argument')
local now = clock()
local state, at = state_of(rule)
local mine = state and state ~= 'known' and string.match(redis.call('GET', rule), '|([^|]*)$') == token

local function enter(name)
  redis.call('SET', rule, name .. '|' .. text(now) .. '|' .. token, 'PX', text(10 * takeover))
  return OK
end

-- rest drops of a sliding subject what an earlier sending of this piece may have added.
local function rest(s, key, before)
  if s.kind == 'P' then
    return string.sub(redis.call('GET', key) or '', 1, DIGITS * before)
  end
  if before == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, before - 1)
  end
end

local function fill_subject(s, key, i)
  local before = tonumber(ARGV[i])
  local n = tonumber(ARGV[i + 1])
  check(before and n and ARGV[i + 1 + n], 'start')
  i = i + 2
  if s.most then
    local ago, uses = string.match(ARGV[i], '^(%d+)|(%d+)$')
    local newest = now - tonumber(ago)
    -- Where a window began is not in the history: taken as late as it can be.
    write_count(s, key, s.kind == 'C' and period(s, now) or newest, tonumber(uses), now)
    return i + n
  end
  local packed = { rest(s, key, before) }
  for k = i, i + n - 1 do
    local at = now - tonumber(ARGV[k])
    if s.kind == 'P' then
      packed[#packed + 1] = word(at)
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

local function fill()
  local s = read_spec(ARGV[4])
  local leases = tonumber(ARGV[5])
  check(leases, 'number')
  if s.kind == 'C' and not period(s, now) then
    return BUSY
  end
  forget_old(now)
  for i = 6, 5 + leases do
    remember(string.sub(rule, -12), ARGV[i], now)
  end
  local i = 6 + leases
  for k = FIRST + 2, #KEYS do
    i = fill_subject(s, KEYS[k], i)
  end
  return enter('filling')
end

local function known()
  if state ~= 'settling' then
    return BUSY
  end
  check(ARGV[5], 'epoch')
  set_known(rule, read_spec(ARGV[4]).longest, now, ARGV[5])
  return OK
end

local function go_on()
  if state == 'known' then
    return DONE_BEFORE
  end
  if step == 'begin' then
    if state and not mine and now - at < takeover then
      return BUSY
    end
    return enter('filling')
  end
  if not mine then
    return BUSY
  end
  if step == 'settle' then
    return enter('settling')
  end
  if step == 'known' then
    return known()
  end
  check(step == 'fill', 'step')
  return state == 'filling' and fill() or BUSY
end

return { go_on(), now }
