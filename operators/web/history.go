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

// Each replica keeps the last hour of each pool in memory, as points (states of the pool) at
// intervals of pointEvery. A replica that has just started restores this history from the log, except
// for what only the replicas count: denials, conflicts and drift.
const (
	pointEvery      = 5 * time.Second
	pointsKept      = int(time.Hour / pointEvery)
	troubleShownFor = 10 * time.Minute // how long a conflict or drift is shown
)

// point is the state of one pool at one time, and its counts since the previous point. The state is read from the ledger, so it does not
// include the slots that Redis offers to waiters. A point is small, because 3,000 pools have more than two million points.
type point struct {
	at               int64 // ms since 1970
	grants, failed   uint32
	held, capacity   uint16
	reaps, denied    uint16 // limited to 65,535
	conflicts, drift uint16
}

// time returns the time of the point.
func (p point) time() time.Time { return time.UnixMilli(p.at).UTC() }

// poolCounts holds counts over some time. Failed counts failed attempts, with those in Reaps. Denied counts reports that got no grant.
// Conflicts counts slots that Redis proposed and the ledger refused. Drift counts slots on which Redis and the ledger disagreed.
type poolCounts struct{ Grants, Reaps, Failed, Denied, Conflicts, Drift int }

// history is the last hour of all pools.
type history struct {
	mu        sync.Mutex
	pools     map[string][]point    // oldest first
	sinceLast map[string]poolCounts // counts after the last point
	last      time.Time             // time of the last point

	disagreeing  map[string]struct{} // pools with conflicts or drift, also with those that are too old to be shown
	talliesSince time.Time           // time since which the counts of the replicas are known; zero if they are not known yet
}

// newHistory returns a history without a point.
func newHistory() *history {
	return &history{pools: map[string][]point{}, sinceLast: map[string]poolCounts{}, disagreeing: map[string]struct{}{}}
}

// addSlotChanges adds the grants and reaps in changes, which come from the log of events, to the counts of the next point.
func (h *history) addSlotChanges(changes []slotChanges) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range changes {
		now := h.sinceLast[m.Pool]
		now.Grants += m.Granted
		now.Reaps += m.Lapsed
		now.Failed += m.Failed
		h.sinceLast[m.Pool] = now
	}
}

// addTally adds counts to the next point of a pool. The replicas made these counts (denials, conflicts and drift).
func (h *history) addTally(pool string, counts meters.Tally) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.sinceLast[pool]
	now.Denied += int(counts.Denied)
	now.Conflicts += int(counts.Conflicts)
	now.Drift += int(counts.Drift)
	h.sinceLast[pool] = now
	if counts.Conflicts+counts.Drift > 0 {
		h.disagreeing[pool] = struct{}{}
	}
}

// totalHeld returns how many slots of all pools were held at the last point.
func (h *history) totalHeld() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	sum := 0
	for _, points := range h.pools {
		sum += int(points[len(points)-1].held)
	}
	return sum
}

// isPointDue reports whether it is time for the next point.
func (h *history) isPointDue(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.last) >= pointEvery
}

// addPoints adds a point at the time now for each pool in uses, and deletes the history of pools that no longer exist.
func (h *history) addPoints(now time.Time, uses []poolUse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	current := make(map[string][]point, len(uses))
	for _, u := range uses {
		s := h.sinceLast[u.Pool]
		points := append(h.pools[u.Pool], point{
			at: now.UnixMilli(), held: toUint16(u.Held), capacity: toUint16(u.Capacity),
			grants: uint32(max(s.Grants, 0)), reaps: toUint16(s.Reaps), denied: toUint16(s.Denied), failed: uint32(max(s.Failed, 0)),
			conflicts: toUint16(s.Conflicts), drift: toUint16(s.Drift),
		})
		if len(points) > pointsKept+pointsKept/8 { // done rarely, so that adding is cheap
			points = slices.Clone(points[len(points)-pointsKept:])
		}
		current[u.Pool] = points
	}
	h.pools, h.sinceLast, h.last = current, map[string]poolCounts{}, now
	if h.talliesSince.IsZero() {
		h.talliesSince = now
	}
}

// toUint16 returns n, limited to 0 to 65,535.
func toUint16(n int) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) } //nolint:gosec // it is in the range

// lastHour returns the last hour of a pool, oldest point first.
func (h *history) lastHour(pool string) []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	points := h.pools[pool]
	return slices.Clone(points[max(0, len(points)-pointsKept):])
}

// countedSince returns talliesSince: the time since which the counts of the replicas are known, or zero.
func (h *history) countedSince() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.talliesSince
}

// recentCounts returns the recent counts of a pool: grants, reaps and denials in the last minute, conflicts
// and drift in the last ten minutes. The precision is pointEvery.
func (h *history) recentCounts(pool string) poolCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	points, sum := h.pools[pool], h.sinceLast[pool]
	for i, p := range slices.Backward(points) {
		if age := len(points) - 1 - i; age < int(time.Minute/pointEvery) {
			sum.Grants += int(p.grants)
			sum.Reaps += int(p.reaps)
			sum.Denied += int(p.denied)
		} else if age >= int(troubleShownFor/pointEvery) {
			break
		}
		sum.Conflicts += int(p.conflicts)
		sum.Drift += int(p.drift)
	}
	return sum
}

// disagreeingPools returns at most maxPools pools with recent conflicts or drift, sorted by name. hasMore reports
// whether there are more such pools.
func (h *history) disagreeingPools(maxPools int) (pools []string, hasMore bool) {
	h.mu.Lock()
	all := slices.Sorted(maps.Keys(h.disagreeing))
	h.mu.Unlock()
	for _, pool := range all {
		if s := h.recentCounts(pool); s.Conflicts+s.Drift == 0 {
			h.mu.Lock()
			delete(h.disagreeing, pool)
			h.mu.Unlock()
			continue
		}
		if len(pools) == maxPools {
			return pools, true
		}
		pools = append(pools, pool)
	}
	return pools, false
}

// maxHistoryEvents is the maximum number of events that are read to restore the last hour: enough for 140
// grants per second and their ends. For a busier hour, only the latest part is restored.
const maxHistoryEvents = 1_000_000

// LoadHistory restores the last hour from the log of the ledger, so that a replica that has just started
// shows the same charts as the other replicas. Call it until it succeeds once.
func (w *Web) LoadHistory(ctx context.Context) error {
	// The pools are read first, so that the log already contains the creation of each of them.
	uses, err := w.log.PoolUses(ctx)
	if err != nil {
		return fmt.Errorf("reading the last hour: %w", err)
	}
	moves, err := w.log.SlotActivity(ctx, time.Hour, pointEvery, maxHistoryEvents)
	if err != nil {
		return fmt.Errorf("reading the last hour: %w", err)
	}
	w.history.prependPoints(w.now(), moves, uses)
	return nil
}

// prependPoints computes the past points of each pool from activity, which was read from the log. It inserts them before the points that
// this replica has collected. uses has the present state of each pool.
func (h *history) prependPoints(now time.Time, activity slotActivity, uses []poolUse) {
	steps := map[string][]slotChanges{}
	for _, s := range activity.Steps {
		steps[s.Pool] = append(steps[s.Pool], s)
	}
	resizes := map[string][]resize{}
	for _, r := range activity.Resizes {
		resizes[r.Pool] = append(resizes[r.Pool], r)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range uses {
		u.Held = activity.Held[u.Pool]
		loaded := pointsFromLog(now, u, activity.Back, steps[u.Pool], resizes[u.Pool])
		if kept := h.pools[u.Pool]; len(kept) > 0 {
			first := kept[0].at - pointEvery.Milliseconds()/2
			loaded = slices.DeleteFunc(loaded, func(p point) bool { return p.at > first })
		}
		h.pools[u.Pool] = append(loaded, h.pools[u.Pool]...)
	}
}

// pointsFromLog computes the past points of a pool from steps and resizes, the changes in the log. It begins with current, the state of the
// pool at the time now. It goes back in time for at most the duration back, and not beyond the creation of the pool.
func pointsFromLog(now time.Time, current poolUse, back time.Duration, steps []slotChanges, resizes []resize) []point {
	slices.SortFunc(steps, func(a, b slotChanges) int { return a.Step - b.Step })
	points := make([]point, 0, pointsKept)
	for n := range min(pointsKept, int(back/pointEvery)) {
		ago := time.Duration(n) * pointEvery
		for len(resizes) > 0 && resizes[0].Ago < ago {
			if resizes[0].Created {
				slices.Reverse(points)
				return points
			}
			if resizes[0].CapacityBefore >= 0 {
				current.Capacity = resizes[0].CapacityBefore
			}
			resizes = resizes[1:]
		}
		p := point{at: now.Add(-ago).UnixMilli(), held: toUint16(current.Held), capacity: toUint16(current.Capacity)}
		for len(steps) > 0 && steps[0].Step <= n {
			p.grants, p.reaps, p.failed = uint32(max(steps[0].Granted, 0)), toUint16(steps[0].Lapsed), uint32(max(steps[0].Failed, 0))
			current.Held += steps[0].Ended - steps[0].Granted
			steps = steps[1:]
		}
		points = append(points, p)
	}
	slices.Reverse(points)
	return points
}
