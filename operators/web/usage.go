package web

import (
	"context"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	usesShown  = 10
	usageEvery = 5 * time.Second // interval at which usage is read again; the cost grows with the number of subjects
)

// usage holds how much of the policies of a pool or a limit set is used, as its page shows it.
type usage struct {
	Of      string // name of the pool or limit set
	Starts  bool   // true for a pool, which counts starts; false for a limit set, which counts takes
	Limited bool   // the pool or limit set has policies
	Unknown bool   // the use cannot be read now
	Uses    []use
}

// use is the use of one policy by one subject. Share is the used part in percent.
type use struct {
	operators.PolicyUse

	Share float64
	Ends  *operators.Time // time when a part of the use ends; nil if nothing is used
}

// usageOf returns how much of the policies of a pool is used. Uses is empty if the pool has no
// policies.
func (p *poolPages) usageOf(r *http.Request, pool string) (usage, error) {
	u := usage{Of: pool, Starts: true}
	var err error
	u.Uses, err = p.usage.read(r.Context(), pool, p.now(), func(ctx context.Context) ([]use, error) {
		highest, err := p.api.Pools.HighestUse(ctx, pool, usesShown)
		return usesOf(highest, p.now()), err
	})
	return u.known(err)
}

// known returns u without an error, and with Unknown set, if err is a status 503. It passes on any
// other error.
func (u usage) known(err error) (usage, error) {
	if u.Unknown = operators.Refused(err, http.StatusServiceUnavailable); u.Unknown {
		return u, nil
	}
	return u, err
}

func usesOf(highest []operators.PolicyUse, now time.Time) []use {
	uses := make([]use, len(highest))
	for i, h := range highest {
		uses[i] = use{PolicyUse: h, Share: shareOf(int(h.Used), int(h.Max))}
		if h.ResetMS > 0 {
			uses[i].Ends = &operators.Time{Time: now.Add(time.Duration(h.ResetMS) * time.Millisecond).Round(time.Second)}
		}
	}
	return uses
}
