// Package limits decides how often something may start: rate limits and the suppression of
// duplicates. Package slots decides how many tasks run at the same time. The counts are in Redis,
// and each decision is one atomic script. The package knows policies and subjects; it knows pools,
// tasks and devices only by name.
//
// A Policy is a limit as an operator writes it. A Rule is a compiled policy. A rule counts each subject separately; a subject is, for
// example, one account. A Check evaluates all rules of one start in one step. If one rule refuses the start, nothing is counted.
//
// A start that passes is reserved under a lease id (Reservations). It counts as used until it is settled: Count counts it permanently, and
// Release gives it back. A refused start counts nothing. If a rule is new, or if Redis lost its data, Redis does not know the rule. Then
// checks return StatusUnknown until a Rebuilder has filled the rule from a history of starts.
//
// A Taking is a request to count a cost now, by the rules of a limit set (CompileSet). The cost is counted only if all rules allow it
// (Takes). The answer contains what remains of each rule. A taking with an ID counts once, even if it is sent several times within ten
// minutes. Return gives back the unused part of a cost. A limit set has no history: a rule that Redis does not know begins to count, and
// the answer contains the time at which it began (TakeResult.Since). Usage returns the current use of subjects, and Refusals returns the
// subjects that were refused most.
//
// A program that uses this package needs a Redis and New; the package's Example is complete. If several processes share a Redis, and one
// process calls Refusals.MostRefused or Usage.Highest, every process has to call Publish of Refusals and of Usage regularly. A scope is the
// name of a pool or limit set, which several processes can share. The keys of a scope begin with limits:{scope}: and are on one node of a
// Cluster.
//
// All times are Redis TIME. No decision depends on the clock of a caller: this package computes the
// calendar periods, and the script selects the current one. A TTL only deletes the data of idle
// subjects; no result depends on it.
package limits
