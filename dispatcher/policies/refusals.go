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

// newRefusalLog returns a refusalLog that has logged nothing. now is used only for elapsed time.
func newRefusalLog(now func() time.Time) refusalLog {
	return refusalLog{throttle.NewSamples[refusingPolicy](now)}
}

// log writes to logger a line for each policy that refuses the start in result. It skips policies that refuse only because of open
// reservations, because such a refusal is over when the reservations are settled.
func (r refusalLog) log(ctx context.Context, logger *slog.Logger, pool string, result checkResult) {
	for _, refusal := range result.refused {
		if refusal.Pending {
			continue
		}
		item := result.check.Items[refusal.Item]
		leftOut, ok := r.samples.Allow(refusingPolicy{pool, item.Rule.Owner, item.Rule.Name})
		if !ok {
			continue
		}
		becomes := "waits"
		if result.obstacle != nil && result.obstacle.DropsTask {
			becomes = "suppressed"
		}
		logger.InfoContext(ctx, "a policy refused a start", "pool", pool, "policy", item.Rule.Name, "owner", item.Rule.Owner,
			"rule", item.Rule.DescribeWindow(refusal.Window), "subject", item.Subject.Label, "becomes", becomes, "left_out", leftOut)
	}
}
