package policies

import "context"

type refusingPolicy struct{ pool, owner, policy string }

// logRefusals logs the refusals of a start, but for each policy only one refusal a minute. It does not log a refusal that is due to an open
// reservation.
func (k *Checker) logRefusals(ctx context.Context, pool string, result checkResult) {
	for _, refusal := range result.refused {
		if refusal.Pending {
			continue
		}
		item := result.check.Items[refusal.Item]
		leftOut, ok := k.refusalSamples.Allow(refusingPolicy{pool, item.Rule.Owner, item.Rule.Name})
		if !ok {
			continue
		}
		becomes := "waits"
		if result.obstacle != nil && result.obstacle.DropsTask {
			becomes = "suppressed"
		}
		k.config.Logger.InfoContext(ctx, "a policy refused a start", "pool", pool, "policy", item.Rule.Name, "owner", item.Rule.Owner,
			"rule", item.Rule.DescribeWindow(refusal.Window), "subject", item.Subject.Label, "becomes", becomes, "left_out", leftOut)
	}
}
