package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// mostDrops is how often one report ends tasks that policies drop: those that a device has
	// beyond what it is shown are seen only then.
	mostDrops = 8
	// dropsAgain is when a device comes back that may have more of them.
	dropsAgain = time.Second
)

// suppressing ends the tasks of many devices together.
type suppressing = coalesce.Calls[struct{}, []store.Suppression, []bool]

func newSuppressing(ledger Ledger, panicked rescue.Told) *suppressing {
	end := func(ctx context.Context, _ struct{}, reports [][]store.Suppression) ([][]bool, error) {
		ended, err := ledger.Suppress(ctx, slices.Concat(reports...))
		if err != nil {
			return nil, err //nolint:wrapcheck // by the caller
		}
		of := make([][]bool, len(reports))
		for i, tasks := range reports {
			of[i], ended = ended[:len(tasks)], ended[len(tasks):]
		}
		return of, nil
	}
	size := func(tasks []store.Suppression) int { return len(tasks) }
	return &suppressing{Call: end, Alone: hadNoEffect, Lanes: lanes, Fill: fill, Most: atMost, Size: size, Limit: recordLimit, Panicked: panicked}
}

// suppress ends the tasks whose policies drop what they refuse, and says whether it tried: what
// the device has is to be read again then. A task that cannot be ended now is refused, until the
// device asks again.
func (h *handling) suppress(ctx context.Context, open []store.Candidate, refused map[int64]decision.Obstacle) bool {
	var tasks []store.Candidate
	var list []store.Suppression
	for _, c := range open {
		if o := refused[c.Task]; o.Drops {
			tasks, list = append(tasks, c), append(list, store.Suppression{Task: c.Task, Reason: o.Detail})
			o.Until = h.view.Now.Add(dropsAgain)
			h.tried.limited[c.Task] = o
		}
	}
	if len(list) == 0 {
		return false
	}
	if h.tried.drops++; h.tried.drops > mostDrops {
		h.tried.more = true
		return false
	}
	ended, err := h.d.together.suppressions.Do(ctx, struct{}{}, list)
	if err != nil {
		h.tried.more = true
		h.d.log.WarnContext(ctx, "tasks that policies drop are ended later", "pool", tasks[0].Pool, "err", err)
		return false
	}
	for i, c := range tasks {
		if ended[i] {
			h.d.Policies.Suppressed(c.Pool, refused[c.Task].Policy)
		}
	}
	return true
}

// shut notes a pool of which policies let nothing start; when they ended tasks there, only
// if it is the last that the device had in it: others are decided about next.
func (h *handling) shut(ctx context.Context, pool string, suppressed bool) error {
	if suppressed {
		if err := h.lookAgain(ctx); err != nil {
			return err
		}
	}
	if !suppressed || !slices.Contains(h.pools(), pool) {
		h.tried.shut = append(h.tried.shut, pool)
	}
	return errNoted
}
