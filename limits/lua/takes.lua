-- takes: the keys and the constants of take.lua and quick_take.lua. scripts.go puts this file in front of
-- these scripts. A taking is one request to a limit set: the rules of the set are to count a cost. An item
-- is a rule and the subject that the rule counts, for example one account.
--
-- KEYS     for each taking: for each item the key of its rule, then the key of its subject. If the taking
--          has an id, the key of the id follows
--
-- The key of a rule holds three values without separators, in this order:
--     since   time (ms, 13 digits) at which the rule began to count in this epoch of Redis
--     renew   time (ms, 13 digits) after which the key must be written again, to renew its TTL
--     epoch   epoch of Redis: another epoch begins when Redis may have lost data (epochs.go)
--     If the key is missing or contains another epoch, the rule begins to count with the next taking.
-- The key of an id holds "time|cost|returned" of the allowed taking with this id:
--     time      time (ms) of the taking
--     cost      cost of the taking
--     returned  how much of the cost was given back later
-- The key of a subject has the form that keys.lua describes for the kind of the rule. Kinds P and L (sliding
-- windows) differ only in this form. If the maximum of the rule was changed, the key can still have the
-- form of the other of these two kinds.

-- Number of digits of each time (ms) in packed times (one text with all times of a subject). 13 digits
-- suffice until the year 2286.
local DIGITS = 13
-- Time in ms for which Redis keeps the key of an id, under which a taking (request to a limit set) was
-- counted. quick_take.lua contains the same number as a text.
local REMEMBER = 600000
-- Time in ms after which the key of a rule is written again. This renews the TTL of the key, so that the
-- key outlives the keys of the subjects of the rule.
local RENEW = 86400000
-- Time in ms that is added to `longest` for the TTL of the key of a rule. Without it, the key of a rarely
-- used rule would expire between two takings, and the rule would begin to count anew each time.
local OUTLIVE = 32 * 86400000
-- Verdict on a taking (request to a limit set): a rule refuses the cost, and nothing was counted.
local REFUSED = 0
-- Verdict on a taking (request to a limit set): all rules allow the cost.
local ALLOWED = 1
-- Verdict on a taking: an earlier taking with the same id and the same cost was counted; this taking is not
-- counted again.
local REPEATED = 2
-- Verdict on a taking: an earlier taking with the same id but another cost was counted; this taking is not
-- counted.
local OTHER_COST = 3
