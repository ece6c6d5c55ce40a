package web

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
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
	at               int64 // ms since 1970
	grants           uint32
	held, capacity   uint16
	reaps, denied    uint16 // more than 65,535 count as that
	conflicts, drift uint16
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

	disagree map[string]struct{} // pools with conflicts or drift, of which some may be over
	heard    time.Time           // since when the replicas' counts are known; zero: not yet
}

func newHistory() *history {
	return &history{pools: map[string][]point{}, since: map[string]happened{}, disagree: map[string]struct{}{}}
}

// count adds what happened in pools.
func (h *history) count(moves []poolMove) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range moves {
		now := h.since[m.Pool]
		now.Grants += m.Granted
		now.Reaps += m.Lapsed
		h.since[m.Pool] = now
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
	if more.Conflicts+more.Drift > 0 {
		h.disagree[pool] = struct{}{}
	}
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
func (h *history) add(now time.Time, uses []poolUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	there := make(map[string][]point, len(uses))
	for _, u := range uses {
		s := h.since[u.Pool]
		points := append(h.pools[u.Pool], point{
			at: now.UnixMilli(), held: small(u.Held), capacity: small(u.Capacity),
			grants: uint32(max(s.Grants, 0)), reaps: small(s.Reaps), denied: small(s.Denied), conflicts: small(s.Conflicts), drift: small(s.Drift),
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
		if age := len(points) - 1 - i; age < int(time.Minute/pointEvery) {
			sum.Grants += int(p.grants)
			sum.Reaps += int(p.reaps)
			sum.Denied += int(p.denied)
		} else if age >= int(troubleShown/pointEvery) {
			break
		}
		sum.Conflicts += int(p.conflicts)
		sum.Drift += int(p.drift)
	}
	return sum
}

// disagreed are up to most pools of which conflicts or drift are shown, by name.
func (h *history) disagreed(most int) (pools []string, more bool) {
	h.mu.Lock()
	all := slices.Sorted(maps.Keys(h.disagree))
	h.mu.Unlock()
	for _, pool := range all {
		if s := h.lately(pool); s.Conflicts+s.Drift == 0 {
			h.mu.Lock()
			delete(h.disagree, pool)
			h.mu.Unlock()
			continue
		}
		if len(pools) == most {
			return pools, true
		}
		pools = append(pools, pool)
	}
	return pools, false
}

// movesRead bounds the events that are read to recall the last hour: 140 grants
// a second and their ends. Of a busier hour the last part is recalled.
const movesRead = 1_000_000

// Recall fills in the last hour as the log of the ledger tells it, so that a
// replica that was just started shows what the others do. It is to be called
// until it succeeds, and once.
func (w *Web) Recall(ctx context.Context) error {
	// The pools first: so the log tells of each of them when it was made.
	uses, err := w.log.PoolUses(ctx)
	if err != nil {
		return fmt.Errorf("recalling the last hour: %w", err)
	}
	moves, err := w.log.Moves(ctx, time.Hour, pointEvery, movesRead)
	if err != nil {
		return fmt.Errorf("recalling the last hour: %w", err)
	}
	w.history.fill(w.now(), moves, uses)
	return nil
}

// fill puts points before those that there are.
func (h *history) fill(now time.Time, past poolMoves, uses []poolUse) {
	steps := map[string][]poolMove{}
	for _, s := range past.Steps {
		steps[s.Pool] = append(steps[s.Pool], s)
	}
	resizes := map[string][]resize{}
	for _, r := range past.Resizes {
		resizes[r.Pool] = append(resizes[r.Pool], r)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range uses {
		u.Held = past.Held[u.Pool]
		told := recalled(now, u, past.Back, steps[u.Pool], resizes[u.Pool])
		if kept := h.pools[u.Pool]; len(kept) > 0 {
			first := kept[0].at - pointEvery.Milliseconds()/2
			told = slices.DeleteFunc(told, func(p point) bool { return p.at > first })
		}
		h.pools[u.Pool] = append(told, h.pools[u.Pool]...)
	}
}

// recalled goes back from what a pool is now, to when it was made.
func recalled(now time.Time, u poolUse, back time.Duration, steps []poolMove, resizes []resize) []point {
	slices.SortFunc(steps, func(a, b poolMove) int { return a.Step - b.Step })
	points := make([]point, 0, pointsKept)
	for n := range min(pointsKept, int(back/pointEvery)) {
		ago := time.Duration(n) * pointEvery
		for len(resizes) > 0 && resizes[0].Ago < ago {
			if resizes[0].Created {
				slices.Reverse(points)
				return points
			}
			if resizes[0].Before >= 0 {
				u.Capacity = resizes[0].Before
			}
			resizes = resizes[1:]
		}
		p := point{at: now.Add(-ago).UnixMilli(), held: small(u.Held), capacity: small(u.Capacity)}
		for len(steps) > 0 && steps[0].Step <= n {
			p.grants, p.reaps = uint32(max(steps[0].Granted, 0)), small(steps[0].Lapsed)
			u.Held += steps[0].Ended - steps[0].Granted
			steps = steps[1:]
		}
		points = append(points, p)
	}
	slices.Reverse(points)
	return points
}
