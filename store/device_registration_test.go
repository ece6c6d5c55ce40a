package store_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestDevicesThatComeTogether checks a list of devices that report for the first time. Each device must be registered once and have one
// event. A device that was blocked when it was deleted must be blocked again. Devices that exist already must not change.
func TestDevicesThatComeTogether(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for id, blocked := range map[string]bool{"was blocked": true, "was deleted": false} {
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
			l.must(l.SetBlocked(l.Context(), "op", id, blocked, ""))
			_, err = l.DeleteDevice(l.Context(), "op", id, false)
			l.must(err)
		}
		_, err := l.CreateDevice(l.Context(), "op", "known", store.DeviceSpec{Tags: map[string]string{"a": "b"}}, []byte("1"), nil)
		l.must(err)
		before := l.createdEvents()
		ids := []string{"z", "known", "was deleted", "a", "z", "was blocked", "Z"}
		all, err := l.EnsureDevices(l.Context(), ids...)
		l.must(err)
		for i, d := range all {
			if d.ID != ids[i] || d.Blocked != (d.ID == "was blocked") || d.HasToken != (d.ID == "known") || len(d.Tags) != 0 != (d.ID == "known") {
				l.Errorf("%d: %+v", i, d)
			}
			again, err := l.Device(l.Context(), ids[i])
			if err != nil || again.Blocked != d.Blocked || again.CreatedAt.IsZero() {
				l.Errorf("%d: %+v, %v", i, again, err)
			}
		}
		if got := l.createdEvents()[len(before):]; !slices.Equal(got, []string{"Z", "a", "was blocked", "was deleted", "z"}) {
			l.Errorf("events of %q", got)
		}
		views, err := l.DeviceViews(l.Context(), []string{"was deleted", "was blocked"})
		l.must(err)
		if views[0].Deleted || views[1].Deleted {
			l.Error("still deleted")
		}
	})
}

// createdEvents returns the devices of all events device.created. The actor of each event must be fleet:test or op.
func (l *ledger) createdEvents() (ids []string) {
	l.Helper()
	events, err := l.Events(l.Context(), store.EventFilter{Kind: "device.created"})
	l.must(err)
	for _, e := range events {
		if e.Actor != "fleet:test" && e.Actor != "op" {
			l.Errorf("%s came by %s", e.Device, e.Actor)
		}
		ids = append(ids, e.Device)
	}
	return ids
}

// TestListsThatMeetRegisterEachDeviceOnce checks concurrent calls that register the same devices in different orders. Each device must be
// registered once.
func TestListsThatMeetRegisterEachDeviceOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	names := deviceNames(60)
	backwards := slices.Clone(names)
	slices.Reverse(backwards)
	var wait sync.WaitGroup
	for range 4 {
		for _, list := range [][]string{names, backwards} {
			wait.Go(func() {
				if all, err := l.EnsureDevices(l.Context(), list...); err != nil || len(all) != len(list) || all[0].ID != list[0] {
					l.Error(fmt.Errorf("%d devices: %w", len(all), err))
				}
			})
		}
	}
	wait.Wait()
	if got := l.createdEvents(); !slices.Equal(slices.Sorted(slices.Values(got)), names) {
		l.Errorf("%d events: %q", len(got), got)
	}
}

// TestARegistrationNamesItsRegistrant checks that a device and its event name who registered the device. A device that is registered
// already must keep its registrant. A device must be reported as new only once.
func TestARegistrationNamesItsRegistrant(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		_, err := l.CreateDevice(l.Context(), "ann", "made", store.DeviceSpec{}, []byte("1"), nil)
		l.must(err)
		stolen := func(id string) store.Registration {
			return store.Registration{Device: id, Registrant: "fleet:0badcafe", Detail: "from=192.0.2.7"}
		}
		registered, err := l.RegisterDevices(l.Context(), stolen("new"), stolen("made"), stolen("new"))
		l.must(err)
		for i, want := range []struct {
			by    string
			isNew bool
		}{{"fleet:0badcafe", true}, {"ann", false}, {"fleet:0badcafe", false}} {
			if got := registered[i]; got.RegisteredBy != want.by || got.IsNew != want.isNew {
				l.Errorf("%d: %+v, want %+v", i, got, want)
			}
		}
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "device.created", Device: "new"})
		l.must(err)
		if len(events) != 1 || events[0].Actor != "fleet:0badcafe" || events[0].Detail != "from=192.0.2.7" {
			l.Errorf("events: %+v", events)
		}
		if events, err = l.Events(l.Context(), store.EventFilter{Actor: "fleet:0badcafe"}); err != nil || len(events) != 1 {
			l.Errorf("events of the token: %+v, %v", events, err)
		}
		for _, name := range []string{"fleet:0badcafe", "Session"} { // no operator can pose as a registrant
			if _, err := l.CreateToken(l.Context(), "op", store.Token{Name: name, Role: "viewer"}, []byte(name)); !errors.Is(err, store.ErrExists) {
				l.Errorf("token %s: %v", name, err)
			}
		}
	})
}
