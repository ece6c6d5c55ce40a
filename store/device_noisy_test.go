package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestNoisyDevices checks that a noisy device is recorded and listed. The device must have one event. It must have a second event only if
// it becomes noisy again after NoisyFor.
func TestNoisyDevices(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		_, err := l.EnsureDevices(l.Context(), "a", "b", "c")
		l.must(err)
		record := func(device string, want bool) {
			l.Helper()
			if isNew, err := l.RecordNoisy(l.Context(), device, "rate=900/s"); err != nil || isNew != want {
				l.Errorf("%s: new %t, %v; want %t", device, isNew, err, want)
			}
		}
		list := func(noisy bool) (ids []string) {
			l.Helper()
			found, err := l.Devices(l.Context(), store.DeviceFilter{Noisy: &noisy})
			l.must(err)
			for _, d := range found {
				ids = append(ids, d.ID)
			}
			return ids
		}
		ago := func(device string, by time.Duration) {
			l.exec(`UPDATE devices SET noisy_at = {now} - $2 * {ms} WHERE id = $1`, device, by.Milliseconds())
		}
		record("b", true)
		ago("b", store.NoisyFor-time.Minute)
		record("b", false)
		record("unknown", false)
		if noisy, others := list(true), list(false); !slices.Equal(noisy, []string{"b"}) || !slices.Equal(others, []string{"a", "c"}) {
			l.Errorf("noisy %v, others %v", noisy, others)
		}
		d, err := l.Device(l.Context(), "b")
		if err != nil || d.NoisyAt == nil || !d.IsNoisy(d.NoisyAt.Add(time.Minute)) || d.IsNoisy(d.NoisyAt.Add(store.NoisyFor)) {
			l.Errorf("%+v, %v", d, err)
		}
		ago("b", store.NoisyFor+time.Second)
		if noisy, others := list(true), list(false); noisy != nil || len(others) != 3 {
			l.Errorf("long after: noisy %v, others %v", noisy, others)
		}
		record("b", true)
		if kinds := l.eventKinds("b"); !slices.Equal(kinds, []string{"device.created", "device.noisy", "device.noisy"}) {
			l.Errorf("events %v", kinds)
		}
	})
}

// TestSuspendedAccountIsEnabledAgain checks that SuspendAccount commits the change that enables the account before it disables the account.
func TestSuspendedAccountIsEnabledAgain(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.RecordAccountChanges()
		_, err := l.EnsureDevices(l.Context(), "a", "blocked")
		l.must(err)
		l.must(l.SetBlocked(l.Context(), "op", "blocked", true, ""))
		l.applyChanges()
		disabled := 0
		suspend := func(device string, failure error) (bool, error) {
			return l.SuspendAccount(l.Context(), device, time.Minute, func(context.Context) error {
				disabled++
				return failure
			})
		}
		for _, device := range []string{"blocked", "unknown"} {
			if is, err := suspend(device, nil); is || err != nil || disabled != 0 {
				l.Errorf("%s: suspended %t, %v", device, is, err)
			}
		}
		if _, err := suspend("a", errBroker); !errors.Is(err, errBroker) || disabled != 1 {
			l.Errorf("%v, disabled %d times", err, disabled)
		}
		if is, err := suspend("a", nil); !is || err != nil || disabled != 2 {
			l.Errorf("after a failure: suspended %t, %v", is, err)
		}
		if early := l.applyChanges(); early != nil {
			l.Errorf("applied before the end: %v", early)
		}
		l.exec(`UPDATE account_changes SET changed_at = {now}`)
		if is, err := suspend("a", nil); is || err != nil || disabled != 2 {
			l.Errorf("with a change that is due: suspended %t, %v", is, err)
		}
		if due := l.applyChanges(); !slices.Equal(due, []store.AccountChange{{Device: "a", Wanted: store.AccountEnabled}}) {
			l.Errorf("applied at the end: %v", due)
		}
		if is, err := suspend("a", nil); !is || err != nil || disabled != 3 {
			l.Errorf("again: suspended %t, %v", is, err)
		}
		l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
		if due := l.applyChanges(); !slices.Equal(due, []store.AccountChange{{Device: "a", Wanted: store.AccountDisabled}}) {
			l.Errorf("blocked while suspended: %v", due)
		}
	})
}
