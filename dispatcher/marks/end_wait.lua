-- end_wait: ends the wait for a slot in the mark of a device that was granted a task. The mark (a field which
-- shows that the device has work) gets a new version, so that a report that read the device before the grant
-- cannot record a wait afterwards (record_wait.lua).
--
-- KEYS[1]  HASH  the marks (mark.lua)
-- ARGV[1]  name of the device
-- ARGV[2]  new version of the mark; no other call uses the same version
-- Returns  1 if the mark has the new version
--          0 if the device has no mark; then nothing was changed

if redis.call('HGET', KEYS[1], ARGV[1]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
  return 1
end
return 0
