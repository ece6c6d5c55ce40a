package store_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestDevicesAreBlockedTogether blocks and unblocks several devices in one call. Only devices that change are counted, and only they get an
// event and a change of their account. Unknown ids are ignored. The device of a grant is asked to stop when it is blocked.
func TestDevicesAreBlockedTogether(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.RecordAccountChanges()
		l.putPool("p", 1)
		for _, id := range []string{"a", "b", "c"} {
			_, err := l.RegisterDevices(l.Context(), store.Registration{Device: id, Registrant: store.SessionRegistrant})
			l.must(err)
		}
		_, tasks := l.queueBatch(store.Batch{Pool: "p"}, "a")
		l.mustGrant(tasks[0], "a", "p", 0)
		set := func(blocked, dryRun bool, want int, ids ...string) {
			l.Helper()
			if n, err := l.SetAllBlocked(l.Context(), "op", ids, blocked, "it smokes", dryRun); err != nil || n != want {
				l.Errorf("blocked %v, dry run %v: %d, %v, want %d", blocked, dryRun, n, err, want)
			}
		}
		set(true, true, 2, "b", "a", "nobody")
		if l.countEvents("device.blocked")+l.countRows("account_changes") != 0 {
			l.Fatal("a dry run changed something")
		}
		set(true, false, 2, "b", "a", "nobody")
		set(true, false, 0, "a", "b")
		set(true, false, 1, "a", "b", "c")
		set(false, false, 1, "c", "nobody")
		set(false, false, 0)
		for id, want := range map[string]bool{"a": true, "b": true, "c": false} {
			wantBy, wantReason := "", ""
			if want {
				wantBy, wantReason = "op", "it smokes"
			}
			if d, err := l.Device(l.Context(), id); err != nil || d.Blocked != want || d.BlockedBy != wantBy || (d.BlockedAt != nil) != want || d.BlockReason != wantReason {
				l.Errorf("%s: %+v, %v, want blocked %v", id, d, err, want)
			}
		}
		if n, m, changes := l.countEvents("device.blocked"), l.countEvents("device.unblocked"), l.countRows("account_changes"); n != 3 || m != 1 || changes != 3 {
			l.Errorf("%d and %d events, %d changes of accounts, want 3, 1 and 3", n, m, changes)
		}
		grants, err := l.Grants(l.Context(), "p")
		l.must(err)
		if len(grants) != 1 || grants[0].CancelWhy != "blocked" {
			l.Errorf("grants %+v, want one that is cancelled", grants)
		}
	})
}
