-- The keys and what they hold; this is sent in front of each script that counts.
--
-- KEYS   1 open     ZSET  lease -> when it was reserved (ms): not settled yet
--        2 pending  ZSET  "subject|when|group|lease", scores 0: what they reserved
--        3 done     ZSET  "rule|lease" -> when it was counted: in the last minute
--        then two for each item (but in fill): rule, subject
-- rule   "known|when|epoch" once what it counted is complete, in this epoch of Redis
--        (epoch.lua); "filling|when|epoch~token" and
--        "settling|when|epoch~token" while a history is being read. Missing: not known.
-- subject, by the spec of its rule, all times in ms:
--   "P cap longest max per ..."  packed times of 13 digits, newest first: the newest cap
--   "L cap longest max per ..."  LIST of times, newest first: the newest cap
--   "F max per"                  "since|n": a window and its count
--   "C max longest start ..."    "since|n": likewise; where periods start
--
-- Only what is counted stands in a subject; what is reserved stands in pending.
-- So nothing has to be taken back from a subject.
-- Time is Redis TIME. A TTL only removes what has no effect any more.
-- SETTLE is after how long (ms) a reservation must have been settled.
-- A script checks its arguments before its first write: nothing rolls back.

local OPEN = KEYS[1]
local PENDING = KEYS[2]
local DONE = KEYS[3]
-- keys before those of the items
local FIRST = 3
-- how long a count is known by its lease
local REMEMBER = 60000
-- a time further ahead than this is of a clock that went back
local AHEAD = 1000
-- of a time that is packed: until the year 2286
local DIGITS = 13
local UNKNOWN = 0
local LIMITED = 1
local PASSED = 2
local UNSETTLED = 3
local NO_PERIOD = 4
