package policies

import (
	"context"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// refusals logs a sample of the refused starts: the first refusal of each policy in a minute.
type refusals struct{ samples *throttle.Samples[refusing] }

// refusing identifies a policy that refuses starts.
type refusing struct{ pool, owner, policy string }

func newRefusals(now func() time.Time) refusals {
	return refusals{throttle.NewSamples[refusing](now)}
}

// log writes a line for each policy that refuses a start. It skips policies that refuse only because of open
// reservations, because such a refusal is over when the reservations are settled.
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
