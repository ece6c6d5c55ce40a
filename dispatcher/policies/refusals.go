package policies

import (
	"context"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/internal/throttle"
)

// refusalLog logs a sample of the refused starts: the first refusal of each policy in a minute.
type refusalLog struct {
	samples *throttle.Samples[refusingPolicy]
}

// refusingPolicy identifies a policy that refuses starts.
type refusingPolicy struct{ pool, owner, policy string }

func newRefusalLog(now func() time.Time) refusalLog {
	return refusalLog{throttle.NewSamples[refusingPolicy](now)}
}

// log writes a line for each policy that refuses a start. It skips policies that refuse only because of open
// reservations, because such a refusal is over when the reservations are settled.
func (r refusalLog) log(ctx context.Context, to *slog.Logger, pool string, j checkResult) {
	for _, refusal := range j.refused {
		if refusal.Pending {
			continue
		}
		item := j.check.Items[refusal.Item]
		leftOut, ok := r.samples.Allow(refusingPolicy{pool, item.Rule.Owner, item.Rule.Name})
		if !ok {
			continue
		}
		becomes := "waits"
		if j.obstacle != nil && j.obstacle.DropsTask {
			becomes = "suppressed"
		}
		to.InfoContext(ctx, "a policy refused a start", "pool", pool, "policy", item.Rule.Name, "owner", item.Rule.Owner,
			"rule", item.Rule.DescribeWindow(refusal.Window), "subject", item.Subject.Label, "becomes", becomes, "left_out", leftOut)
	}
}
