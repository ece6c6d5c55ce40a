-- times: functions that read and format times. The scripts that count starts of tasks or requests to limit
-- sets use them.

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

-- nth_newest: returns the n-th newest time (ms) of the Redis list `key`, which holds the newest time first. If
-- the list has fewer than n times, it returns nil.
local function nth_newest(key, n)
  return tonumber(redis.call('LINDEX', key, text(n - 1)) or nil)
end
