package web

import (
	"context"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	usesShown  = 10
	usageEvery = 5 * time.Second // it is read anew: it costs by the subjects that are compared
)

// usage is what was used of the policies of a pool or a limit set, as its page shows it.
type usage struct {
	Of      string // its name
	Starts  bool   // starts in a pool are counted, and no takes
	Limited bool   // there are policies
	Unknown bool   // they cannot be read now
	Uses    []use
}

// use is a policy and a subject, with what is used out of 100.
type use struct {
	operators.PolicyUse

	Share float64
	Ends  *operators.Time // when some of it does; nil: nothing is used
}

// usageOf returns what was used of the policies of a pool; nothing, if it has none.
func (p *poolPages) usageOf(r *http.Request, pool string) (usage, error) {
	u := usage{Of: pool, Starts: true}
	var err error
	u.Uses, err = p.usage.read(r.Context(), pool, p.now(), func(ctx context.Context) ([]use, error) {
		highest, err := p.api.Pools.HighestUse(ctx, pool, usesShown)
		return usesOf(highest, p.now()), err
	})
	return u.known(err)
}

// known says whether the policies could be read.
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
