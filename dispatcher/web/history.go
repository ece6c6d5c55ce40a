package web

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/store"
)

// The last hour of each pool is kept in the memory of this replica, as points
// that are pointEvery apart. A replica that was just started recalls it from the
// log, but for what only replicas count: denials, conflicts and drift.
const (
	pointEvery   = 5 * time.Second
	pointsKept   = int(time.Hour / pointEvery)
	troubleShown = 10 * time.Minute // that a conflict or drift is shown
)

// point is one pool at one time, and its counts since the point before. It
// is small: there are a million of 3,000 pools.
type point struct {
	at                    int64 // ms since 1970
	held, capacity        uint16
	grants, reaps, denied uint16 // more than 65,535 count as that
	conflicts, drift      uint16
}

func (p point) time() time.Time { return time.UnixMilli(p.at).UTC() }

// happened holds the counts since the last point.
type happened struct{ Grants, Reaps, Denied, Conflicts, Drift int }

// history is the last hour.
type history struct {
	mu    sync.Mutex
	pools map[string][]point  // oldest first
	since map[string]happened // after the last point
	last  time.Time           // of the points
	heard time.Time           // since when the replicas' counts are known; zero: not yet
}

func newHistory() *history {
	return &history{pools: map[string][]point{}, since: map[string]happened{}}
}

// count adds events of pools.
func (h *history) count(events []store.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		now := h.since[e.Pool]
		switch e.Kind {
		case "task.granted":
			now.Grants++
		case "task.lapsed":
			now.Reaps++
		default:
			continue
		}
		h.since[e.Pool] = now
	}
}

// tally adds the replicas' counts of a pool.
func (h *history) tally(pool string, more meters.Tally) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.since[pool]
	now.Denied += int(more.Denied)
	now.Conflicts += int(more.Conflicts)
	now.Drift += int(more.Drift)
	h.since[pool] = now
}

// held is how many slots of all pools were held at the last point.
func (h *history) held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := 0
	for _, points := range h.pools {
		sum += int(points[len(points)-1].held)
	}
	return sum
}

// due says whether it is time for the next point.
func (h *history) due(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.last) >= pointEvery
}

// add keeps a point of every pool there is, and forgets those that are gone.
func (h *history) add(now time.Time, uses []store.PoolUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := make(map[string][]point, len(uses))
	for _, u := range uses {
		s := h.since[u.Pool]
		points := append(h.pools[u.Pool], point{
			at: now.UnixMilli(), held: small(u.Held), capacity: small(u.Capacity),
			grants: small(s.Grants), reaps: small(s.Reaps), denied: small(s.Denied), conflicts: small(s.Conflicts), drift: small(s.Drift),
		})
		if len(points) > pointsKept+pointsKept/8 { // seldom, so that adding is cheap
			points = slices.Clone(points[len(points)-pointsKept:])
		}
		there[u.Pool] = points
	}
	h.pools, h.since, h.last = there, map[string]happened{}, now
	if h.heard.IsZero() {
		h.heard = now
	}
}

func small(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) } //nolint:gosec // it is in the range

// of returns the last hour of a pool, oldest first.
func (h *history) of(pool string) []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	points := h.pools[pool]
	return slices.Clone(points[max(0, len(points)-pointsKept):])
}

// counting is since when the replicas' counts are known; zero: not yet.
func (h *history) counting() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.heard
}

// lately holds the recent counts of a pool: grants, reaps and denials in the last
// minute, conflicts and drift in the last ten, to within pointEvery.
func (h *history) lately(pool string) happened {
	h.mu.Lock()
	defer h.mu.Unlock()
	points, sum := h.pools[pool], h.since[pool]
	for i, p := range slices.Backward(points) {
		if age := len(points) - 1 - i; age < int(time.Minute/pointEvery)-1 {
			sum.Grants += int(p.grants)
			sum.Reaps += int(p.reaps)
			sum.Denied += int(p.denied)
		} else if age >= int(troubleShown/pointEvery)-1 {
			break
		}
		sum.Conflicts += int(p.conflicts)
		sum.Drift += int(p.drift)
	}
	return sum
}
