-- takes: the keys and constants of take.lua. A take asks the rules of a limit set to count a cost (a number).
-- An item is a rule and the subject for which the rule counts, for example one account.

-- KEYS     for each take: for each item the key of its rule, then the key of its subject. If the take
--          has an id, the key of the id follows

-- The key of a rule holds three values without separators, in this order:
--     since   time (ms, 13 digits) at which the rule began to count in the epoch below
--     renew   time (ms, 13 digits) after which the key must be written again, to renew its TTL
--     epoch   name of a period in which Redis lost no data (epochs.go)
--     If the key is missing or contains another epoch, the rule begins to count with the next take.
-- The key of an id holds "time|cost|returned" of the allowed take with this id:
--     time      time (ms) of the take
--     cost      cost of the take
--     returned  how much of the cost was given back later
-- The key of a subject has the form that keys.lua describes for the kind of the rule.

-- Number of digits of each time (ms) in the key of a rule. 13 digits suffice until 2286.
local DIGITS = 13
-- Time in ms for which Redis keeps the id of a counted take, so that a repetition is not counted twice.
local REMEMBER = 600000
-- Time in ms after which the key of a rule is written again, so that it outlives the keys of its subjects.
local RENEW = 86400000
-- Time in ms by which the TTL of a rule's key exceeds the longest window of the rule. With a shorter TTL, a
-- rarely used rule would begin to count anew with each take.
local OUTLIVE = 32 * 86400000
-- Verdict on a take: a rule refuses the cost, and nothing is counted.
local REFUSED = 0
-- Verdict on a take: all rules allow the cost.
local ALLOWED = 1
-- Verdict on a take: it was counted before, with the same id and cost. It is not counted again.
local REPEATED = 2
-- Verdict on a take: another take with the same id but another cost was counted before. This take is not
-- counted.
local OTHER_COST = 3
