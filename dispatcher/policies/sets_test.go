package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

// setLedger is a ledger of limit sets that records its calls.
type setLedger struct {
	Ledger
	sets         map[string]store.LimitSet
	setReads     atomic.Int64
	versionNames []string // names in the latest call of LimitSetVersions
}

func (l *setLedger) LimitSet(_ context.Context, name string) (store.LimitSet, error) {
	l.setReads.Add(1)
	set, is := l.sets[name]
	if !is {
		return set, store.ErrNotFound
	}
	return set, nil
}

func (l *setLedger) LimitSetVersions(_ context.Context, sets []string) (found []store.LimitSetVersion, err error) {
	l.versionNames = sets
	for _, name := range sets {
		if set, is := l.sets[name]; is {
			found = append(found, store.LimitSetVersion{Name: name, Version: set.Version, CreatedAt: set.CreatedAt})
		}
	}
	return found, nil
}

// allowingTakes is a limiter that allows every take (a request to a limit set).
type allowingTakes struct{ Takes }

func (allowingTakes) Take(_ context.Context, _ string, takings []limits.Taking) ([]limits.TakeResult, error) {
	taken := make([]limits.TakeResult, len(takings))
	for i := range taken {
		taken[i].Allowed = true
	}
	return taken, nil
}

func (l *setLedger) putSet(maxPerSecond int, version int64, created time.Time) {
	text := fmt.Sprintf(`[{"name":"n","per":"facts.a","algorithm":"fixed","max":%d,"per_ms":1000}]`, maxPerSecond)
	l.sets["sms"] = store.LimitSet{Name: "sms", Limits: json.RawMessage(text), Version: version, CreatedAt: created}
}

// TestTakesSpareTheLedger checks that a take from a cached limit set does not call the ledger. ForgetChanged compares
// the versions of the cached sets to find the sets that were changed or deleted.
func TestTakesSpareTheLedger(t *testing.T) {
	t.Parallel()
	l, born := &setLedger{sets: map[string]store.LimitSet{}}, time.UnixMilli(1)
	l.putSet(5, 1, born)
	sets := newSets(Config{Ledger: l, Limits: &Limits{Takes: allowingTakes{}}, Meters: meters.New(nil)})
	readMax := func() int64 {
		t.Helper()
		v, err := sets.Take(t.Context(), "sms", []Take{{Cost: 1}})
		must.Succeed(t, err)
		return v[0].Rules[0].Max
	}
	follow := func() {
		t.Helper()
		must.Succeed(t, sets.ForgetChanged(t.Context()))
	}
	for range 100 {
		readMax()
	}
	if n := l.setReads.Load(); n != 1 {
		t.Errorf("read %d times for 100 takes", n)
	}
	l.putSet(6, 2, born)
	if follow(); readMax() != 6 {
		t.Error("a change is not followed")
	}
	l.putSet(7, 2, born.Add(time.Second)) // the set was deleted, created again and changed
	if follow(); readMax() != 7 {
		t.Error("a set that was made anew is not followed")
	}
	if follow(); l.setReads.Load() != 3 {
		t.Errorf("read %d times", l.setReads.Load())
	}
	for range idleSets + 2 {
		follow()
	}
	if l.versionNames = nil; len(sets.byName) != 0 {
		t.Error("a set that nobody uses is kept")
	}
	if follow(); l.versionNames != nil {
		t.Errorf("asked for %v", l.versionNames)
	}
	readMax()
	delete(l.sets, "sms")
	follow()
	if _, err := sets.Take(t.Context(), "sms", []Take{{Cost: 1}}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
}

// A limit set is changed while it is being read. The old version that the read returns must not stay in the cache.
func TestASetReadBeforeItsChangeIsNotKept(t *testing.T) {
	t.Parallel()
	l := &setLedger{sets: map[string]store.LimitSet{}}
	l.putSet(5, 1, time.UnixMilli(1))
	sets := newSets(Config{Ledger: l, Meters: meters.New(nil)})
	drops := sets.drops
	set, err := sets.readSet(t.Context(), "sms")
	must.Succeed(t, err)
	sets.Forget("sms")
	if sets.cacheSet(set, drops); sets.byName["sms"] != nil {
		t.Error("kept")
	}
}
