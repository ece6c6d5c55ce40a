-- takes: the keys and the constants of take.lua and quick_take.lua. scripts.go puts this file in
-- front of them.
--
-- KEYS     for each taking: the key of the rule and the key of the subject of each item, then, if the
--          taking has an id, the key of the id
--
-- The key of a rule holds "since renew epoch" without separators:
--     since   time (ms, 13 digits) since which the rule counts in this epoch of Redis
--     renew   time (ms, 13 digits) after which the key is written again
--     epoch   epoch of Redis (epochs.go)
--     If the key is missing or has another epoch, the rule begins to count with the next taking.
-- The key of an id holds "time|cost|returned" of an allowed taking:
--     time      time (ms) of the taking
--     cost      cost of the taking
--     returned  part of the cost that was given back
-- The key of a subject holds what keys.lua describes. A sliding subject can have the form of the
-- other kind (P or L) if the maximum was changed.

-- Number of digits of a time in a packed text; sufficient until the year 2286.
local DIGITS = 13
-- ms for which an id is kept. quick_take.lua contains the same number as a text.
local REMEMBER = 600000
-- ms after which the key of a rule is written again, so that it outlives its subjects.
local RENEW = 86400000
-- ms by which the TTL of a rule exceeds `longest`, so that a rule that is rarely used does not
-- begin to count anew with each use.
local OUTLIVE = 32 * 86400000
-- Verdict: the cost is not allowed, and nothing was counted.
local REFUSED = 0
-- Verdict: the cost is allowed.
local ALLOWED = 1
-- Verdict: this id was counted before with the same cost.
local REPEATED = 2
-- Verdict: this id was counted before with another cost; nothing was counted.
local OTHER_COST = 3
