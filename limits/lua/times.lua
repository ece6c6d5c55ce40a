-- times: functions over times for all scripts that count. The file in front of this one sets DIGITS.

-- check: ends the script with the error "limits: bad <what>" if ok is nil or false.
local function check(ok, what)
  if not ok then
    error('limits: bad ' .. what)
  end
end

-- clock: returns the time of Redis in ms, as a number and as a text.
local function clock()
  local t = redis.call('TIME')
  -- The first three of six digits of the microseconds are the milliseconds.
  local at = t[1] .. string.sub('00000' .. t[2], -6, -4)
  return tonumber(at), at
end

-- text: returns the whole number n as a text. Numbers are passed to Redis as texts, because Redis,
-- and Lua without a format, convert a number as a fraction, which takes longer than a Redis
-- command.
local function text(n)
  return string.format('%d', n)
end

-- nth_newest: returns the time (ms) of the n-th newest start of a subject, or nil if the subject
-- has fewer starts. packed is the text of packed times. If packed is nil, the list `key` is read.
local function nth_newest(packed, key, n)
  if packed then
    return tonumber(string.sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n))
  end
  return tonumber(redis.call('LINDEX', key, n - 1) or nil)
end

-- packed_time: returns the time `at` as it is written into packed times: 13 digits, so that the
-- order as text is the order in time.
local function packed_time(at)
  return string.format('%013.0f', at)
end
