package web

import (
	"context"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	usesShown      = 10
	usageReadEvery = 5 * time.Second // interval at which usage is read again; the cost grows with the number of subjects
)

// policyUsage is the data of a page about the policies of a pool or a limit set: how much of each policy is used.
type policyUsage struct {
	Owner   string // name of the pool or the limit set
	Starts  bool   // true for a pool, which counts starts; false for a limit set, which counts takes
	Limited bool   // the pool or limit set has policies
	Unknown bool   // the use cannot be read now
	Uses    []policyUse
}

// policyUse is the use of one policy by one subject. Share is the used part in percent.
type policyUse struct {
	operators.PolicyUse

	Share float64
	Ends  *operators.Time // time at which a part of the usage expires; nil if nothing is used
}

// readUsage returns how much the subjects have used of the policies of a pool. If the pool has no policies, the field Uses is empty.
func (p *poolPages) readUsage(r *http.Request, pool string) (policyUsage, error) {
	u := policyUsage{Owner: pool, Starts: true}
	var err error
	u.Uses, err = p.usageCache.getOrRead(r.Context(), pool, p.now(), func(ctx context.Context) ([]policyUse, error) {
		usage, err := p.api.Pools.Usage(ctx, pool, operators.UsageQuery{Limit: usesShown})
		return newPolicyUses(usage.Highest, p.now()), err
	})
	return u.tolerateUnavailable(err)
}

// tolerateUnavailable returns u and readErr. If readErr has the status 503, it instead returns u with Unknown set, and no error.
func (u policyUsage) tolerateUnavailable(readErr error) (policyUsage, error) {
	if u.Unknown = operators.HasStatus(readErr, http.StatusServiceUnavailable); u.Unknown {
		return u, nil
	}
	return u, readErr
}

// newPolicyUses converts highest, the uses of the subjects that used most, to the data of the page. now is the time from which the expiry
// is computed.
func newPolicyUses(highest []operators.PolicyUse, now time.Time) []policyUse {
	uses := make([]policyUse, len(highest))
	for i, h := range highest {
		uses[i] = policyUse{PolicyUse: h, Share: heldSlotsPercent(int(h.Used), int(h.Max))}
		if h.ResetMS > 0 {
			uses[i].Ends = &operators.Time{Time: now.Add(time.Duration(h.ResetMS) * time.Millisecond).Round(time.Second)}
		}
	}
	return uses
}
