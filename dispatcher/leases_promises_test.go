package dispatcher_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/internal/test/pages"
)

// promiseCell is one cell of a table. It names the tests which check that one difference does not break one promise of the README. If the cell
// begins with "cannot: ", it gives the reason why the difference cannot break the promise.
type promiseCell string

// difference is one row of a table: one way in which a caller, or a device that speaks DDI, differs from a device that reports, with a cell
// for each promise.
type difference struct {
	name string

	cap, task, result, leak, fenced, failsClosed, idle promiseCell
}

const (
	noResult        = "cannot: a lease has no result but its end, which is committed before it is answered"
	notReadForSlots = "cannot: no decision about a slot reads it"
)

// callerDifferences returns the ways in which a caller differs from a device that reports. A new difference needs a new row.
func callerDifferences() []difference {
	return []difference{
		{
			name: "a lease has a length of its own, and a renewal may change it",
			cap:  "TestEachLeaseIsDoubtedForItsOwnLength, TestTheLengthOfALease", task: "TestALeaseThatIsNotRenewedIsReaped", result: noResult,
			leak: "cannot: the reaper reads the end of the grant, which has the length already", fenced: "TestTheLengthOfALease",
			failsClosed: "TestLeasesThatDoNotFitAreRefused",
			idle:        "TestALeaseOfItsOwnLengthFitsTheWindow, TestACallerThatDoesNotFitLetsOthersGoFirst, TestACallerThatDoesNotFitTheBatchLetsOthersGoFirst, TestAnObstacleOfTheLeaseIsTheTasksOwn",
		},
		{
			name: "a holder has no row in devices, so no last report and no block",
			cap:  "TestRequestsOfAHolderAtOnceGetOneLease, TestCallersAndDevicesShareTheCap", task: "TestACallerThatDoesNotComeBackExpires", result: noResult,
			leak: "TestALeaseThatIsNotRenewedIsReaped", fenced: "TestALeaseThatIsNotRenewedIsReaped", failsClosed: "TestARevokedTokenEndsEverywhere, TestACallerThatIsAnsweredEarlyBlocksNobody",
			idle: "TestTheNextCallerMayWaitElsewhere, TestALeaseThatWasWaitedForIsCountedForItsHolder",
		},
		{
			name: "its name begins with @, and has the name of the caller in it",
			cap:  "TestCallersNeverHoldMoreThanTheyMay", task: "TestLeasesAreListedByCaller", result: noResult,
			leak: "TestLeasesAreReleasedByForce", fenced: "TestNoDeviceIsACaller, TestCallersHaveTheirOwnLeases", failsClosed: "TestNoDeviceIsACaller",
			idle: "cannot: for Redis and for the queue a name is a text, and the escaped one has no separator (TestLeasesAreListedByCaller)",
		},
		{
			name: "its task is in a batch of the system, one for each pool and day",
			cap:  "cannot: the slots of callers are counted by pool and not by batch", task: "TestTheBatchOfLeases", result: noResult,
			leak: "cannot: a grant ends by its own row", fenced: "cannot: tokens are numbers of the ledger, whatever the batch", failsClosed: "TestTheBatchOfLeasesIsTheSystems",
			idle: "TestABatchThatStartsNothingBlocksNoCallers, TestAShutPoolKeepsTheOrderOfCallers",
		},
		{
			name: "a slot is given back, and never returned for another attempt",
			cap:  "TestALeaseGoesFromGrantToEnd", task: "TestALeaseThatIsNotRenewedIsReaped", result: noResult,
			leak: "TestLeasesAreReleasedByForce", fenced: "TestALeaseGoesFromGrantToEnd, TestALeaseGrantedMeanwhileIsNotGivenUp",
			failsClosed: "cannot: giving a slot back grants nothing", idle: "TestCallersWaitInTheirOrder",
		},
		{
			name: "its batch may be set urgent, for all callers of the pool at once",
			cap:  "TestUrgentBatchesHaveTheirShareAndNoMore", task: "cannot: the lane orders the queue and nothing else", result: noResult,
			leak: "cannot: the lane orders the queue and nothing else", fenced: "cannot: the lane orders the queue and nothing else",
			failsClosed: "cannot: the lane orders the queue and nothing else", idle: "TestUrgentBatchesHaveTheirShareAndNoMore, TestCallersWaitInTheirOrder",
		},
		{
			name: "retention removes the batches of past days, while callers may wait in them",
			cap:  "cannot: it removes only tasks that have ended", task: "TestRetentionKeepsOpenLeases", result: noResult,
			leak: "TestRetentionKeepsOpenLeases", fenced: "cannot: tokens only increase, whatever is removed", failsClosed: notReadForSlots,
			idle: "TestRetentionKeepsOpenLeases",
		},
		{
			name: "after a restore the ledger may have lost a lease longer than that of the pool",
			cap:  "TestStandstillIsTheLongestLease, TestAfterARestoreNobodyGetsInBesideWhoIsInside", task: "TestAfterRestore", result: noResult,
			leak: "TestStandstillIsTheLongestLease", fenced: "TestAfterRestore", failsClosed: "TestAfterARestoreNobodyGetsInBesideWhoIsInside",
			idle: "cannot: nobody is granted a slot during the standstill, and the order of callers stays (TestAnObstacleOfTheLeaseIsTheTasksOwn)",
		},
		{
			name: "a lease that was only tried is deleted, and taken out of the folded counts",
			cap:  notReadForSlots, task: "TestLeasesAreCountedExactly, TestATryLeavesNothingBehind", result: noResult, leak: "TestATryLeavesNothing",
			fenced: "TestATryGetsWhatItsHolderGotMeanwhile, TestATryLeavesNothingBehind", failsClosed: "TestATryThatCannotBeConfirmed", idle: "TestATryLeavesNothing",
		},
		{
			name: "callers may have a bound of their own below the capacity",
			cap:  "TestCallersNeverHoldMoreThanTheyMay, TestCallersShareTheSlots", task: "TestWaitingIsGivenUp", result: noResult,
			leak: "TestALeaseThatIsNotRenewedIsReaped", fenced: "cannot: the bound says whether there is a grant, and not which",
			failsClosed: "TestNoCallerIsGrantedASlotWithoutTheBound",
			idle: "TestCallersWaitInTheirOrder, TestACallerThatGivesUpLetsTheNextOneLook, TestACallerThatStoodAsideStandsAgain, " +
				"TestACallerThatLeavesAfterItStoodAsideBlocksNobody, TestATryInsteadOfAWaitBlocksNobody",
		},
		{
			name: "its position is a time in the ledger, and a request may break off",
			cap:  "TestLeasesOutliveRedis", task: "TestACallerThatDoesNotComeBackExpires, TestALaterRequestKeepsItsPosition", result: noResult,
			leak:   "TestNoSlotIsHeldForACallerThatCannotAskAgain, TestNoSlotIsHeldForACallerThatGotAnError",
			fenced: "TestRequestsOfAHolderAtOnceGetOneLease", failsClosed: "TestATryThatCannotBeConfirmed",
			idle: "TestACallerThatIsAnsweredEarlyBlocksNobody, TestACallerWithoutANameLeavesTheLine",
		},
		{
			name: "policies count by its name, and one that drops lets it wait",
			cap:  "cannot: policies only refuse", task: "TestAPolicyThatDropsLetsALeaseWait", result: noResult, leak: "TestAPolicyThatDropsLetsALeaseWait",
			fenced: "TestALeaseThatWasWaitedForIsCountedForItsHolder", failsClosed: "cannot: a policy that cannot be asked is the same obstacle as for a device",
			idle: "TestALimitedCallerLetsOthersGoFirst",
		},
	}
}

func (d difference) cellsByPromise() map[string]promiseCell {
	return map[string]promiseCell{
		"cap": d.cap, "no task lost": d.task, "no result lost": d.result, "no leak": d.leak,
		"idempotent and fenced": d.fenced, "fail closed": d.failsClosed, "no idle slot": d.idle,
	}
}

// TestCallersAndDDIKeepThePromises checks the tables of differences: each has a cell for each promise of the README, and the tests that a cell
// names exist.
func TestCallersAndDDIKeepThePromises(t *testing.T) {
	t.Parallel()
	all, err := pages.TestNames("..")
	must.Succeed(t, err)
	for _, d := range append(callerDifferences(), ddiDifferences()...) {
		for promise, c := range d.cellsByPromise() {
			if reason, is := strings.CutPrefix(string(c), "cannot: "); is && reason != "" {
				continue
			}
			for name := range strings.SplitSeq(string(c), ", ") {
				if !all[name] {
					t.Errorf("%s, %s: there is no test %q", d.name, promise, name)
				}
			}
		}
	}
}
