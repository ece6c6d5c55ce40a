-- times: functions for times. All scripts of this directory that count starts or takes use them.

-- check: ends the script with the error "limits: bad <what>" if ok is nil or false.
local function check(ok, what)
  if not ok then
    error('limits: bad ' .. what)
  end
end

-- clock: returns the time of Redis in ms, as a number and as a text.
local function clock()
  local t = redis.call('TIME')
  -- The first 3 of the 6 digits of the microseconds are the milliseconds.
  local at = t[1] .. string.sub('00000' .. t[2], -6, -4)
  return tonumber(at), at
end

-- text: returns the integer n as a text, which is faster than the conversion by Redis or Lua.
local function text(n)
  return string.format('%d', n)
end

-- nth_newest: returns the n-th newest time (ms) of the Redis list `key`, whose newest time is first, or nil.
local function nth_newest(key, n)
  return tonumber(redis.call('LINDEX', key, text(n - 1)) or nil)
end
