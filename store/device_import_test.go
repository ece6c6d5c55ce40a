package store_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// newDevices returns the devices d-from to d-(to-1). The secret of a device's token is the parameter token followed by the id of the
// device.
func newDevices(from, to int, token string) []store.NewDevice {
	var list []store.NewDevice
	for i := from; i < to; i++ {
		id := fmt.Sprint("d-", i)
		hash := sha256.Sum256([]byte(token + id))
		list = append(list, store.NewDevice{ID: id, Tags: json.RawMessage(fmt.Sprintf(`{"n":"%d"}`, i)), Hash: hash[:]})
	}
	return list
}

func (l *ledger) ownsToken(device, token string) bool {
	l.Helper()
	hash := sha256.Sum256([]byte(token + device))
	found, err := l.TokenByHash(l.Context(), hash[:])
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		l.Fatal(err)
	}
	return err == nil && found.Device == device
}

func (l *ledger) countDevices() int {
	l.Helper()
	n, after := 0, ""
	for {
		page, err := l.Devices(l.Context(), store.DeviceFilter{After: after, Limit: 1000})
		l.must(err)
		if n += len(page); len(page) < 1000 {
			return n
		}
		after = page[len(page)-1].ID
	}
}

func (l *ledger) countEvents(kind string) int {
	l.Helper()
	n, after := 0, int64(0)
	for {
		page, err := l.Events(l.Context(), store.EventFilter{Kind: kind, After: after, Limit: 1000})
		l.must(err)
		if n += len(page); len(page) < 1000 {
			return n
		}
		after = page[len(page)-1].ID
	}
}

func TestImport(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		given, err := l.ImportDevices(l.Context(), "op", newDevices(0, 2300, "a"), store.RefuseExisting, 0, 0)
		l.must(err)
		if slices.Contains(given, false) || l.countDevices() != 2300 || l.countEvents("devices.imported") != 1 || l.countEvents("device.created") != 0 {
			l.Fatalf("%d devices, %d imports, all given %t", l.countDevices(), l.countEvents("devices.imported"), !slices.Contains(given, false))
		}
		for _, i := range []int{0, 999, 1000, 2299} {
			id := fmt.Sprint("d-", i)
			d, err := l.Device(l.Context(), id)
			if want := map[string]string{"n": fmt.Sprint(i)}; err != nil || !cmp.Equal(want, d.Tags) || string(d.Attributes) != "{}" || !l.ownsToken(id, "a") {
				l.Errorf("%+v, %v", d, err)
			}
		}
		// An entry in the second chunk of this import is refused. Then nothing of the first chunk may be stored, either.
		again := append(newDevices(5000, 6500, "b"), newDevices(1700, 1800, "b")...)
		_, err = l.ImportDevices(l.Context(), "op", again, store.RefuseExisting, 0, 0)
		var entry *store.EntryError
		if !errors.Is(err, store.ErrExists) || !errors.As(err, &entry) || entry.Entry != 1500 || l.countDevices() != 2300 || l.ownsToken("d-5000", "b") {
			l.Errorf("refused with %v (%+v); %d devices", err, entry, l.countDevices())
		}
		given, err = l.ImportDevices(l.Context(), "op", again, store.SkipExisting, 0, 0)
		l.must(err)
		if slices.Contains(given[:1500], false) || slices.Contains(given[1500:], true) || l.countDevices() != 3800 || l.ownsToken("d-1700", "b") {
			l.Errorf("skipped: %v, %d devices", given[1490:1510], l.countDevices())
		}
	})
}

func TestImportRotates(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		_, err := l.ImportDevices(l.Context(), "op", newDevices(0, 3, "a"), store.RefuseExisting, 0, 0)
		l.must(err)
		_, err = l.DeleteDevice(l.Context(), "op", "d-2", true)
		l.must(err)
		again := newDevices(0, 4, "b")
		again[0].Tags = json.RawMessage(`{"other":"tags"}`)
		given, err := l.ImportDevices(l.Context(), "op", again, store.RotateExisting, time.Hour, 0)
		l.must(err)
		for i := range 4 {
			id := fmt.Sprint("d-", i)
			if !given[i] || !l.ownsToken(id, "b") || l.ownsToken(id, "a") != (i < 2) {
				l.Errorf("%s: given %t, owns the new token %t, the old one %t", id, given[i], l.ownsToken(id, "b"), l.ownsToken(id, "a"))
			}
		}
		if d, err := l.Device(l.Context(), "d-0"); err != nil || d.Tags["n"] != "0" || len(d.Tags) != 1 {
			l.Errorf("the tags of a device that is there: %v, %v", d.Tags, err)
		}
		_, err = l.ImportDevices(l.Context(), "op", newDevices(1, 2, "c"), store.RotateExisting, 0, 0)
		l.must(err)
		if l.ownsToken("d-1", "a") || l.ownsToken("d-1", "b") || !l.ownsToken("d-1", "c") || !l.ownsToken("d-0", "a") {
			l.Error("an overlap of nothing left older tokens, or took a neighbour's")
		}
		if n := l.countEvents("device.token_added"); n != 3 {
			l.Errorf("%d tokens added, want 3", n)
		}
		// The mark "deleted" of a device that was deleted and then imported again must be gone.
		if views, err := l.DeviceViews(l.Context(), []string{"d-2"}); err != nil || views[0].Deleted || views[0].Device == nil {
			l.Errorf("%+v, %v", views, err)
		}
	})
}

func TestImportTakesEffectOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	once := &store.Once{Key: "k", Digest: func() ([]byte, error) { return []byte("same"), nil }}
	ctx := store.WithOnce(l.Context(), once)
	for i, replayed := range []bool{false, true} {
		given, err := l.ImportDevices(ctx, "op", newDevices(0, 2, fmt.Sprint(i)), store.RefuseExisting, 0, 0)
		l.must(err)
		if once.Replayed != replayed || given[0] == replayed || given[1] == replayed {
			l.Errorf("replayed %t, given %v", once.Replayed, given)
		}
	}
	if !l.ownsToken("d-0", "0") || l.ownsToken("d-0", "1") {
		l.Error("a replay gave a token")
	}
}

// TestImportsAtOnce checks concurrent imports that list the same devices in opposite orders: each device gets
// exactly one token.
func TestImportsAtOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	var wait sync.WaitGroup
	results := make([][]bool, 3)
	for i := range results {
		wait.Go(func() {
			list := newDevices(0, 1500, fmt.Sprint(i))
			if i == 0 {
				slices.Reverse(list)
			}
			given, err := l.ImportDevices(l.Context(), "op", list, store.SkipExisting, 0, 0)
			if err != nil {
				l.Error(err)
			}
			if i == 0 {
				slices.Reverse(given)
			}
			results[i] = given
		})
	}
	wait.Wait()
	if l.Failed() {
		return
	}
	for n := range 1500 {
		winners := 0
		for i, given := range results {
			if given[n] {
				winners++
			}
			if n%50 == 0 && given[n] != l.ownsToken(fmt.Sprint("d-", n), fmt.Sprint(i)) {
				l.Fatalf("import %d says of d-%d what is not so", i, n)
			}
		}
		if winners != 1 {
			l.Fatalf("%d imports gave d-%d its token", winners, n)
		}
	}
}
