// Package limits decides how often something may start: rate limits and the
// suppression of duplicates, beside the slots, which decide how many run at once.
// It lives in Redis, one atomic script per decision, and knows policies and
// subjects, nothing of pools, tasks or devices but their names.
//
// A Policy is what an operator writes; a Rule is a policy that was compiled; a
// subject is what is counted on its own, such as one account. A Check asks all
// rules of one start at once: all of them let it pass, or nothing is counted.
//
// A start that passes is reserved under a lease id (Reservations), and counts as used until it is
// settled: counted for good (Count), or given back (Release). Refusals cost
// nothing. A rule that Redis does not know, because it is new or its Redis lost
// its data, is not known: StatusUnknown, until it was filled from a history
// (Rebuilder).
//
// A Taking asks for something now, of any cost, by the rules of a set (CompileSet): all of
// them allow the cost, and it is counted, or nothing is (Takes). The answer says what remains of
// each rule. A take under an id counts once, however often it is sent within ten minutes;
// Return gives back what was not used. A set has no history: a rule that Redis does not
// know begins to count, and the answer says since when (Taken.Since). Usage says what subjects
// use now, and Refusals which subjects were refused most.
//
// Another program needs a Redis and New; the package's Example is all of it. If several
// processes share a Redis, and one calls Refusals.Top or Usage.Highest, all of them call Publish of
// Refusals and of Usage now and then. One
// process or many, a scope is a name: its keys begin with limits:{scope}: and are on one
// node of a Cluster.
//
// All times are Redis TIME. No clock of a caller decides anything; calendars are
// computed here and chosen by the script. No correctness rests on the TTL of a
// key: they only clean up behind idle subjects.
package limits
