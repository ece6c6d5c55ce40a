package web

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

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
func (h *history) fill(now time.Time, past store.Moves, uses []store.PoolUse) {
	steps := map[string][]store.Move{}
	for _, s := range past.Steps {
		steps[s.Pool] = append(steps[s.Pool], s)
	}
	resizes := map[string][]store.Resize{}
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
func recalled(now time.Time, u store.PoolUse, back time.Duration, steps []store.Move, resizes []store.Resize) []point {
	slices.SortFunc(steps, func(a, b store.Move) int { return a.Step - b.Step })
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
			p.grants, p.reaps = small(steps[0].Granted), small(steps[0].Lapsed)
			u.Held += steps[0].Ended - steps[0].Granted
			steps = steps[1:]
		}
		points = append(points, p)
	}
	slices.Reverse(points)
	return points
}
