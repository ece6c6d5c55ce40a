package web

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	usesShown  = 10
	usageEvery = 5 * time.Second // it is read anew: it costs by the subjects that are compared
)

// usage is what the policies of a pool have used, as its page shows it.
type usage struct {
	Pool    string
	Limited bool // the pool has policies
	Unknown bool // they cannot be read now
	Uses    []use
}

// use is a policy and a subject, with what is used out of 100.
type use struct {
	operators.PolicyUse

	Share float64
	Ends  *operators.Time // when some of it does; nil: nothing is used
}

func (p *poolPages) usageOf(r *http.Request, pool operators.Pool) (usage, error) {
	u := usage{Pool: pool.Name, Limited: len(pool.Limits) > 0}
	if !u.Limited {
		return u, nil
	}
	var err error
	u.Uses, err = p.usage.read(r.Context(), pool.Name, p.now(), func(ctx context.Context) ([]use, error) {
		highest, err := p.api.Pools.HighestUse(ctx, pool.Name, usesShown)
		return usesOf(highest, p.now()), err
	})
	if e, is := errors.AsType[*operators.Problem](err); is && e.Status == http.StatusServiceUnavailable {
		u.Unknown = true
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
