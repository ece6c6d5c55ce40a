-- times: functions that read and format times. The scripts that count starts of tasks or requests to limit
-- sets use them. Each script defines DIGITS before this file (keys.lua or takes.lua).

-- check: ends the script with the error "limits: bad <what>" if ok is nil or false.
local function check(ok, what)
  if not ok then
    error('limits: bad ' .. what)
  end
end

-- clock: returns the current time of Redis in ms twice: as a number and as a text.
local function clock()
  local t = redis.call('TIME')
  -- t[1] is the seconds, t[2] the microseconds within the second. Padded to 6 digits, the first 3 digits of
  -- the microseconds are the milliseconds.
  local at = t[1] .. string.sub('00000' .. t[2], -6, -4)
  return tonumber(at), at
end

-- text: returns the integer n as a text. Scripts use it for every number that they pass to Redis, because the
-- conversion that Redis or Lua would do instead takes longer than a command.
local function text(n)
  return string.format('%d', n)
end

-- nth_newest: returns the time (ms) of the n-th newest start of a subject; nil if the subject has fewer than
-- n starts. packed is one text with the times of the starts, 13 digits each, newest first. If packed is nil,
-- the times are in the Redis list `key`.
local function nth_newest(packed, key, n)
  if packed then
    return tonumber(string.sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n))
  end
  return tonumber(redis.call('LINDEX', key, n - 1) or nil)
end

-- packed_time: returns the time `at` (ms) as a text of 13 digits. All such texts have the same length, so
-- their order as texts is their order in time.
local function packed_time(at)
  return string.format('%013.0f', at)
end
