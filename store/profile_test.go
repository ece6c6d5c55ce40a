package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestAProfileIsNeverTakenFromADevice deletes a profile while another call gives it to a device. Exactly one of the
// two calls must succeed.
func TestAProfileIsNeverTakenFromADevice(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for i := range 15 {
			name, device := fmt.Sprintf("p-%d", i), fmt.Sprintf("d-%d", i)
			_, created, err := l.PutProfile(l.Context(), "op", store.Profile{Name: name, Limits: json.RawMessage(policiesJSON)})
			l.must(err)
			if !created {
				l.Errorf("%s was there", name)
			}
			_, err = l.CreateDevice(l.Context(), "op", device, store.DeviceSpec{}, []byte(device), nil)
			l.must(err)
			var deleted, given error
			var both sync.WaitGroup
			both.Go(func() { deleted = l.DeleteProfile(l.Context(), "op", name) })
			both.Go(func() {
				_, given = l.ChangeDevice(l.Context(), "op", device, func(d *store.DeviceSpec) error { d.Profile = name; return nil })
			})
			both.Wait()
			switch {
			case deleted == nil && errors.Is(given, store.ErrUnknownProfile):
			case errors.Is(deleted, store.ErrInUse) && given == nil:
			default:
				l.Errorf("deleted: %v, given: %v", deleted, given)
			}
		}
	})
}

// TestProfilesPutAtOnce checks several concurrent calls that put the same profile. One call must create it, and each change must have its
// own version.
func TestProfilesPutAtOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const writers = 8
	versions := make(chan int64, writers)
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			p, created, err := l.PutProfile(l.Context(), "op", store.Profile{Name: "p", Limits: json.RawMessage(fmt.Sprintf(`[{"name":"n-%d"}]`, i))})
			if err != nil || created != (p.Version == 1) {
				l.Errorf("%+v, created %t, %v", p, created, err)
			}
			versions <- p.Version
		})
	}
	all.Wait()
	close(versions)
	seen := map[int64]bool{}
	for v := range versions {
		if seen[v] || v < 1 || v > writers {
			l.Errorf("version %d twice, or of nobody", v)
		}
		seen[v] = true
	}
}
