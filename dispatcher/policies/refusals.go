package policies

import (
	"context"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// refusals of starts are logged as a sample: the first of a policy in a minute.
type refusals struct{ samples *throttle.Samples[refusing] }

// refusing is a policy that refuses.
type refusing struct{ pool, owner, policy string }

func newRefusals(now func() time.Time) refusals {
	return refusals{throttle.NewSamples[refusing](now)}
}

// log tells of the policies that refuse a start, but for reservations alone: these pass by
// themselves.
func (r refusals) log(ctx context.Context, to *slog.Logger, pool string, j judged) {
	for _, refusal := range j.refused {
		if refusal.Pending {
			continue
		}
		item := j.check.Items[refusal.Item]
		leftOut, ok := r.samples.Pass(refusing{pool, item.Rule.Owner, item.Rule.Name})
		if !ok {
			continue
		}
		becomes := "waits"
		if j.obstacle != nil && j.obstacle.Drops {
			becomes = "suppressed"
		}
		to.InfoContext(ctx, "a policy refused a start", "pool", pool, "policy", item.Rule.Name, "owner", item.Rule.Owner,
			"rule", item.Rule.Describe(refusal.Window), "subject", item.Subject.Label, "becomes", becomes, "left_out", leftOut)
	}
}
