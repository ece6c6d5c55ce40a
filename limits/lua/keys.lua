-- keys: the keys of a scope and the constants of the scripts that count starts. scripts.go puts this
-- file in front of each script, after the line "local SETTLE = ...". SETTLE is the maximum time (ms)
-- for which a reservation may stay open.
--
-- KEYS[1]  open     ZSET  lease -> time of the reservation (ms), for each open reservation
-- KEYS[2]  pending  ZSET  "subject|time|group|lease" -> 0; one member for each subject that an open
--                         reservation concerns. subject is the name that subject_name returns, 35
--                         characters
-- KEYS[3]  done     ZSET  "rule|lease" -> time of the count (ms); entries are kept for REMEMBER ms
-- KEYS[4...]        for each item: the key of its rule, then the key of its subject; in fill.lua one
--                   rule and then any number of subjects
--
-- The key of a rule holds the state of the rule, a text:
--     missing                       unknown: Redis may lack starts that the rule has to count
--     "filling|time|epoch~token"    a process reads the history; starts are not counted
--     "settling|time|epoch~token"   the history is written; settle.lua counts starts by the rule, but
--                                   the rule is still unknown to checks
--     "known|time|epoch"            the counts are complete
--     time   time (ms) of the latest write
--     epoch  epoch of Redis; it changes when Redis may have lost data (epochs.go)
--     token  names the process that fills the rule
--
-- The key of a subject holds the starts that were counted, in the form that the spec of its rule
-- names. The spec is a text; all times are in ms:
--     "P cap longest max per ..."   sliding windows; the subject is a text, the times of the newest
--                                   `cap` starts, 13 digits each, newest first
--     "L cap longest max per ..."   the same; the subject is a LIST of times, newest first
--     "F max per"                   fixed window; the subject is "time|n": the start of the window
--                                   and the number of starts
--     "C max longest start ..."     calendar; the subject is "time|n": the start of the period and
--                                   the number of starts
--     cap      maximum number of starts that are kept
--     longest  time after which a start has no effect
--     max per  a window: at most max starts in per ms; the pair is repeated for each window
--     start    the starts of the previous, the current and the next two periods
--
-- Invariants:
--   A subject contains only counted starts. Reservations are only in KEYS[1] and KEYS[2], so a
--   reservation that is released changes no subject.
--   All times are Redis TIME. A TTL deletes only data that has no effect any more.
--   A script checks its arguments before its first write, because Redis rolls nothing back.

local OPEN = KEYS[1]
local PENDING = KEYS[2]
local DONE = KEYS[3]
-- Number of keys in front of the keys of the items.
local FIXED_KEYS = 3
-- ms for which KEYS[3] keeps the lease of a counted start.
local REMEMBER = 60000
-- A stored time that is more than MAX_AHEAD ms in the future proves that the clock of Redis was set
-- back.
local MAX_AHEAD = 1000
-- Number of digits of a time in a packed text; sufficient until the year 2286.
local DIGITS = 13
-- Status of a check: a rule is unknown.
local UNKNOWN = 0
-- Status of a check: a rule refuses the start.
local LIMITED = 1
-- Status of a check: the start may happen.
local PASSED = 2
-- Status of a check: a reservation is open for longer than SETTLE.
local UNSETTLED = 3
-- Status of a check: the spec of a calendar contains no period for the time of Redis.
local NO_PERIOD = 4
