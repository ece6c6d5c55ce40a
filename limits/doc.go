// Package limits decides how often something may start: rate limits and the suppression of duplicates. The counts are in Redis, and each
// decision is one atomic script. The package knows pools, tasks and devices only by name.
//
// A Policy (package policy) is a limit as an operator writes it, for example a maximum for each calendar week. A Rule is a compiled policy. A
// rule counts each subject separately. A subject has a value of each field that the policy names, for example a site and a model. A Check
// evaluates all rules of one start. If rules refuse, nothing is counted, and the Answer lists all refusing rules.
//
// A start that passes is reserved under a lease id (Reservations). It counts as used until Count counts it permanently or Release gives it
// back. If a reservation stays open for longer than SettleWithin, all new checks of its scope return StatusUnsettled until it is settled.
//
// Redis does not know a rule that is new or whose data was lost. Checks of such a rule return StatusUnknown until a Rebuilder has filled the
// rule from a history of starts.
//
// The package does not apply the fields on_limited and on_error of a policy. The caller applies them with Rule.Drops and Rule.FailsOpen.
//
// A Taking asks the rules of a limit set (CompileSet) to count a cost now (Takes). A take with an ID counts once, even if it is sent several
// times within ten minutes. Return gives back the unused part of its cost. A limit set has no history. A rule that Redis does not know begins
// to count at 0, and TakeResult.Since is the time at which it began.
//
// A program needs a Redis and New (see the Example). If several processes share a Redis and one calls RefusalCounts.MostRefused or
// Usage.HighestUses, each must call both Publish methods regularly. A scope is a pool or a limit set. A rule counts in each scope separately.
// The keys of a scope begin with limits:{scope}: and are on one node of a Cluster.
//
// All times are Redis TIME, so no decision depends on the clock of a caller. A TTL only deletes data that no longer has any effect.
package limits
