-- keys: the keys and constants of the scripts that count starts of tasks by rules (rate limits). scripts.go
-- puts this file in front of them. The local variable SETTLE is defined before this file: it is the time in
-- ms after which a reservation is overdue.

-- Terms of these scripts:
--     scope        a name, usually a pool; all keys of one call belong to one scope
--     rule         a rate limit, for example at most 5 starts in 1 hour
--     subject      one of the values for which a rule counts starts separately, for example one account
--     item         a rule and one of its subjects
--     lease        id of one start of a task
--     check        the question whether one start may happen now, and all items that must allow this start
--     reservation  a start that counts before it happens. It is open until settle.lua counts it or gives it back
--     group        a name: checks with the same group are alternatives, so at most one of them starts

-- KEYS[1]  open     ZSET  lease -> time of the reservation (ms); one member for each open reservation
-- KEYS[2]  pending  ZSET  "subject|time|group|lease" -> 0; one member for each subject of each open
--                         reservation. subject is the text of 35 characters that subject_name returns
-- KEYS[3]  done     ZSET  "rule|lease" -> time (ms) at which the rule counted the start; Redis keeps
--                         members for REMEMBER ms
-- KEYS[4...]        for each item two keys: the key of its rule, then the key of its subject. In fill.lua:
--                   the key of one rule, then the keys of any number of its subjects

-- The key of a rule holds the state of the rule, a text. A rule that Redis does not know is filled from the
-- history of starts in the ledger (fill.lua) before checks use it:
--     the key is missing            the rule is unknown: Redis may lack starts that the rule must count
--     "filling|time|epoch~token"    a process copies the history of starts to Redis; no script counts
--                                   starts by the rule
--     "settling|time|epoch~token"   the history is complete in Redis; settle.lua counts starts by the
--                                   rule, but checks still treat the rule as unknown
--     "known|time|epoch"            the counts are complete, and checks use the rule
--     time   time (ms) at which the state was last written
--     epoch  name of a period in which Redis lost no data (epochs.go)
--     token  identifies the process that fills the rule

-- The spec of a rule is a text that describes the rule. Its first word is the kind of the rule. The kind
-- decides what the key of a subject holds. All times are in ms:
--     "S cap longest max per ..."   sliding windows: the key of the subject holds a Redis LIST with the
--                                   times of the newest `cap` starts, newest first
--     "F max per"                   fixed window: the key of the subject holds "time|n", the start of the
--                                   window and the number of starts in it
--     "C max longest start ..."     calendar: the key of the subject holds "time|n", the start of the
--                                   period and the number of starts in it
--     cap      maximum number of stored starts of a subject
--     longest  time after which a start has no effect on the rule
--     max per  one window: at most max starts in per ms; S repeats this pair for each window
--     start    four times: the starts of the previous, the current and the next two calendar periods

-- Invariants:
--   The key of a subject contains only counted starts. Reservations are only in KEYS[1] and KEYS[2], so
--   the release of a reservation changes no key of a subject.
--   All times are Redis TIME. A TTL deletes only data that has no effect any more.
--   A script checks its arguments before its first write, because Redis does not roll back a script that
--   fails.

local OPEN = KEYS[1]
local PENDING = KEYS[2]
local DONE = KEYS[3]
-- Number of keys before the keys of the items.
local FIXED_KEYS = 3
-- Time in ms for which KEYS[3] remembers a counted start, so that a repeated call does not count it twice.
local REMEMBER = 60000
-- Maximum time in ms by which a stored time may be later than the time of Redis. If a stored time is even
-- later, the clock of Redis was set back.
local MAX_AHEAD = 1000
-- Status of a check: Redis may lack starts that a rule of the check counts. This rule must first be filled from
-- the history.
local UNKNOWN = 0
-- Status of a check: one of its rules refuses the start.
local LIMITED = 1
-- Status of a check: all rules allow the start.
local PASSED = 2
-- Status of a check: some reservation of the scope is overdue (SETTLE). A process must first find out whether
-- the start of this reservation happened.
local UNSETTLED = 3
-- Status of a check: the spec of a calendar rule has no period for the current time of Redis.
local NO_PERIOD = 4
