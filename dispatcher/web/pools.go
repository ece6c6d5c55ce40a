package web

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/fleetslots/dispatcher/store"
)

const (
	poolsShown   = 48   // of one page
	waitingShown = 1000 // counted up to, on a card
	fewPools     = 4    // up to so many are shown with their slots
	fewSlots     = 200
)

func (w *Web) routePools() {
	w.page("/{$}", w.poolsPage)
}

// poolCard is a pool on the first page.
type poolCard struct {
	store.PoolView
	Chart         chart
	Grants, Reaps int // of the last minute
	Many          bool
	Share         float64 // of the bar, out of 100
	Cells         []cell  // where there are few pools
	Over          bool    // more is held than the capacity, after that was lowered
}

func (w *Web) poolsPage(r *http.Request) (page, error) {
	after := r.URL.Query().Get("after")
	views, err := w.options.Ledger.PoolViews(r.Context(), after, poolsShown+1, waitingShown)
	if err != nil {
		return page{}, err
	}
	next := ""
	if len(views) > poolsShown {
		views = views[:poolsShown]
		next = "/?" + url.Values{"after": {views[poolsShown-1].Pool.Name}}.Encode()
	}
	cards := make([]poolCard, len(views))
	for i, v := range views {
		cards[i] = w.card(v)
		if len(views) <= fewPools && v.Pool.Capacity <= fewSlots {
			d := poolData{Pool: poolJSON{Name: v.Pool.Name, LeaseMS: v.Pool.Lease.Milliseconds()}, Looks: map[string]int{}}
			if err := w.get(r, apiPath("pools", v.Pool.Name, "slots"), nil, &d.Slots); err != nil {
				return page{}, err
			}
			d.fill(w.options.Now())
			cards[i].Cells, cards[i].Held, cards[i].Waiting, cards[i].Many = d.Cells, d.Slots.Held, d.Slots.Waiting, false
		}
	}
	return page{
		title: "Pools", section: "pools", template: "pools", watch: watch{always: true},
		data: map[string]any{
			"Cards": cards, "Few": len(cards) <= fewPools, "Next": next, "First": after == "", "Admin": w.may(r, "admin"), "Broken": broken(w.dependencies(r.Context())),
		},
	}, nil
}

func (w *Web) card(v store.PoolView) poolCard {
	c := poolCard{PoolView: v, Chart: chartOf(w.history.of(v.Pool.Name), 300, 48), Many: v.Waiting >= waitingShown, Over: v.Held > v.Pool.Capacity}
	c.Grants, c.Reaps = w.history.lastMinute(v.Pool.Name)
	if v.Pool.Capacity > 0 {
		c.Share = min(100, 100*float64(v.Held)/float64(v.Pool.Capacity))
	}
	return c
}

// broken are the dependencies that do not work.
func broken(list []dependency) []dependency {
	return slices.DeleteFunc(list, func(d dependency) bool { return d.State == "ok" })
}
