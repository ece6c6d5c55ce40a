-- Functions over times, which all scripts share that count. DIGITS is set before.

local function check(ok, what)
  if not ok then
    error('limits: bad ' .. what)
  end
end

-- clock is the time, as a number and as a text.
local function clock()
  local t = redis.call('TIME')
  -- us to ms
  local at = t[1] .. string.sub('00000' .. t[2], -6, -4)
  return tonumber(at), at
end

-- text of a whole number. Redis is given texts: it, and Lua without a format, write a
-- number as one with a fraction, which takes longer than a call.
local function text(n)
  return string.format('%d', n)
end

-- nth is when the n-th newest start of a sliding subject was: in its packed times, or
-- in its list.
local function nth(packed, key, n)
  if packed then
    return tonumber(string.sub(packed, DIGITS * n - DIGITS + 1, DIGITS * n))
  end
  return tonumber(redis.call('LINDEX', key, n - 1) or nil)
end

-- word is a time as it is packed: later ones are greater as texts, too.
local function word(at)
  return string.format('%013.0f', at)
end
