package web

import (
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// The last hour of each pool is kept in the memory of this replica, as points
// that are pointEvery apart. A replica that was just started has none.
const (
	pointEvery = 5 * time.Second
	pointsKept = int(time.Hour / pointEvery)
)

// point is one pool at one time, and what happened since the point before.
type point struct {
	at             time.Time
	held, capacity int32
	grants, reaps  int32
}

// history is the last hour.
type history struct {
	mu    sync.Mutex
	pools map[string][]point // oldest first
	since map[string]point   // what happened after the last point
	last  time.Time          // of the points
}

func newHistory() *history {
	return &history{pools: map[string][]point{}, since: map[string]point{}}
}

// count notes what happened to pools.
func (h *history) count(events []store.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		p := h.since[e.Pool]
		switch e.Kind {
		case "task.granted":
			p.grants++
		case "task.lapsed":
			p.reaps++
		default:
			continue
		}
		h.since[e.Pool] = p
	}
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
		p := h.since[u.Pool]
		p.at, p.held, p.capacity = now, int32(u.Held), int32(u.Capacity) //nolint:gosec // at most 10,000
		points := append(h.pools[u.Pool], p)
		if len(points) > 2*pointsKept { // seldom, so that adding is cheap
			points = slices.Clone(points[len(points)-pointsKept:])
		}
		there[u.Pool] = points
	}
	h.pools, h.since, h.last = there, map[string]point{}, now
}

// of returns the last hour of a pool, oldest first.
func (h *history) of(pool string) []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	points := h.pools[pool]
	return slices.Clone(points[max(0, len(points)-pointsKept):])
}

// lastMinute counts what happened in the last minute, to within pointEvery.
func (h *history) lastMinute(pool string) (grants, reaps int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	points, running := h.pools[pool], h.since[pool]
	grants, reaps = int(running.grants), int(running.reaps)
	for _, p := range points[max(0, len(points)-int(time.Minute/pointEvery)+1):] {
		grants += int(p.grants)
		reaps += int(p.reaps)
	}
	return grants, reaps
}
