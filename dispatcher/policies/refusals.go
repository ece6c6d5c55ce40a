package policies

import "context"

type refusingPolicy struct{ pool, owner, policy string }

// logRefusals logs the first refusal of each policy in a minute. It does not log policies that refuse the start only because of open
// reservations.
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
