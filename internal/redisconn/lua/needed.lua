-- needed: returns the Redis commands that the program needs, but that this Redis user may not use or that this
-- server does not have. So the program can report a missing right before another script fails. The script
-- writes a text to a key with a TTL of one second, and calls each command on this key. Most permitted commands
-- fail without effect, because the key has the wrong type, or because another node of the Redis Cluster owns
-- the key. Only errors about rights and unknown commands count.
--
-- KEYS     none
-- ARGV[1]  name of the key
-- Returns  a list of command names; empty if all commands can be used

local key = ARGV[1]
local commands = {
  { 'SET', key, '', 'PX', '1000' },
  { 'GET', key },
  { 'PEXPIRE', key, '1000' },
  { 'TIME' },
  { 'HGET', key, 'f' },
  { 'HSET', key, 'f', '1' },
  { 'HDEL', key, 'f' },
  { 'HGETALL', key },
  { 'HKEYS', key },
  { 'HLEN', key },
  { 'HMGET', key, 'f' },
  { 'LINDEX', key, '0' },
  { 'LINSERT', key, 'BEFORE', 'a', 'b' },
  { 'LLEN', key },
  { 'LPUSH', key, 'a' },
  { 'LRANGE', key, '0', '1' },
  { 'LREM', key, '1', 'a' },
  { 'LTRIM', key, '0', '1' },
  { 'RPOP', key },
  { 'RPUSH', key, 'a' },
  { 'ZADD', key, '1', 'm' },
  { 'ZCARD', key },
  { 'ZCOUNT', key, '0', '1' },
  { 'ZINCRBY', key, '1', 'm' },
  { 'ZLEXCOUNT', key, '-', '+' },
  { 'ZPOPMIN', key },
  { 'ZRANGE', key, '0', '1' },
  { 'ZRANGEBYLEX', key, '-', '+' },
  { 'ZRANGEBYSCORE', key, '0', '1' },
  { 'ZRANK', key, 'm' },
  { 'ZREM', key, 'm' },
  { 'ZREMRANGEBYLEX', key, '-', '+' },
  { 'ZREMRANGEBYRANK', key, '0', '1' },
  { 'ZREMRANGEBYSCORE', key, '0', '1' },
  { 'ZREVRANGE', key, '0', '1' },
  { 'ZSCORE', key, 'm' },
  { 'DEL', key },
}
local forbidden = {}
for _, command in ipairs(commands) do
  local reply = redis.pcall(unpack(command))
  local err = type(reply) == 'table' and reply.err or ''
  if string.find(err, 'permission')
    or string.find(err, "can't run")
    or string.find(err, 'Unknown')
    or string.find(err, 'unknown command')
  then
    forbidden[#forbidden + 1] = command[1]
  end
end
return forbidden
