package store_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestDevicesAreDeletedTogether checks the deletion of several devices. A device with open tasks is kept unless its tasks are cancelled. A
// dry run only counts. Each deleted device has one event. Unknown ids are ignored.
func TestDevicesAreDeletedTogether(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.RecordAccountChanges()
		l.putPool("p", 1)
		ids := []string{"c", "a", "nobody", "b"}
		for _, id := range []string{"a", "b", "c", "other"} {
			_, err := l.CreateDevice(l.Context(), "op", id, store.DeviceSpec{}, []byte("token of "+id), nil)
			l.must(err)
		}
		l.queueBatch(store.Batch{Pool: "p"}, "b", "b", "other")
		remove := func(options store.DeviceDeletion, want store.DeviceRemoval) {
			l.Helper()
			if got, err := l.DeleteDevices(l.Context(), "op", ids, options); err != nil || got != want {
				l.Errorf("%+v: %+v, %v, want %+v", options, got, err, want)
			}
		}
		remove(store.DeviceDeletion{DryRun: true}, store.DeviceRemoval{Deleted: 2, Kept: 1})
		remove(store.DeviceDeletion{DryRun: true, CancelOpenTasks: true}, store.DeviceRemoval{Deleted: 3})
		if n := l.countRows("devices"); n != 4 || l.countRows("tokens") != 4 || l.countEvents("task.cancelled") != 0 {
			l.Fatal("a dry run changed something")
		}
		remove(store.DeviceDeletion{}, store.DeviceRemoval{Deleted: 2, Kept: 1})
		remove(store.DeviceDeletion{}, store.DeviceRemoval{Kept: 1})
		remove(store.DeviceDeletion{CancelOpenTasks: true}, store.DeviceRemoval{Deleted: 1, Cancelled: 2})
		remove(store.DeviceDeletion{}, store.DeviceRemoval{})
		for what, n := range map[string]int{
			"devices": l.countRows("devices") - 1, "tokens": l.countRows("tokens") - 1, "deleted devices": l.countRows("deleted_devices") - 3,
			"changes of accounts": l.countRows("account_changes") - 3, "events": l.countEvents("device.deleted") - 3,
		} {
			if n != 0 {
				l.Errorf("%d %s too many", n, what)
			}
		}
	})
}

// TestARefusedIDIsRegisteredOnlyByAnOperator checks a device that was deleted with the option Refuse. No report may register its id again,
// but other devices of the same call are registered. An operator can register the id, which ends the refusal.
func TestARefusedIDIsRegisteredOnlyByAnOperator(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		report := func(want string) {
			l.Helper()
			found, err := l.EnsureDevices(l.Context(), "stolen", "new")
			if err != nil || found[0].ID != want || found[1].ID != "new" {
				l.Errorf("%+v, %v, want %q and new", found, err, want)
			}
		}
		remove := func(refuse bool) {
			l.Helper()
			_, err := l.DeleteDevices(l.Context(), "op", []string{"stolen", "new"}, store.DeviceDeletion{Refuse: refuse})
			l.must(err)
		}
		report("stolen")
		remove(false)
		report("stolen")
		_, err := l.DeleteDevices(l.Context(), "op", []string{"stolen"}, store.DeviceDeletion{Refuse: true})
		l.must(err)
		report("")
		_, err = l.CreateDevice(l.Context(), "op", "stolen", store.DeviceSpec{}, []byte("1"), nil)
		l.must(err)
		remove(false)
		report("stolen")
	})
}
