-- The keys of takes and what they hold; this is sent in front of take.lua.
--
-- KEYS   for each taking: rule and subject of each item; then, of one with an id, its key
-- rule   "since renew epoch": since when it counts in this epoch of Redis and until when it need not
--        be written again, 13 digits each, and the epoch. Missing, or of another epoch: it begins to count now
-- id     "when|cost|given back", of a take that was allowed
-- subject, by the spec of its rule: as in keys.lua; but one that slides may be in the other form,
--        if the maximum was changed since
-- of a time that is packed: until the year 2286
local DIGITS = 13
-- how long a take is known by its id; also in quick_take.lua, as a text
local REMEMBER = 600000
-- after which a rule is written again, so that it outlives its subjects
local RENEW = 86400000
-- by so much: one that is used now and then does not begin anew each time
local OUTLIVE = 32 * 86400000
local REFUSED = 0
local ALLOWED = 1
local REPEATED = 2
local OTHER_COST = 3
