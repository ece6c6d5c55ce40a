package web

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	poolsShown   = 16   // of one page
	waitingShown = 1000 // counted up to, in a list of pools
	fewPools     = 4    // up to so many are shown with their slots
	fewSlots     = 200
)

func (w *Web) routePools() {
	w.livePage("/{$}", w.checked(w.poolsPage))
}

// poolCard is a pool on the first page.
type poolCard struct {
	operators.PoolState

	Chart  chart
	Lately happened
	Many   bool    // wait: more than are counted here
	Share  float64 // of the bar, out of 100
	Cells  []cell  // where there are few pools
	Over   bool    // more is held than the capacity, after that was lowered
}

func (w *Web) poolsPage(r *http.Request, checks []dependency) (page, error) {
	query := url.Values{"page_size": {strconv.Itoa(poolsShown)}}
	token := r.URL.Query().Get("page")
	if token != "" {
		query.Set("page_token", token)
	}
	var list operators.PoolList
	if err := w.get(r, operators.Path("pools"), query, &list); err != nil {
		return page{}, err
	}
	next := ""
	if list.NextPageToken != "" {
		next = "/?" + url.Values{"page": {list.NextPageToken}}.Encode()
	}
	cards := make([]poolCard, len(list.Pools))
	for i, p := range list.Pools {
		cards[i] = w.card(p)
		if len(list.Pools) <= fewPools && p.Capacity <= fewSlots {
			if err := w.drawSlots(r, &cards[i]); err != nil {
				return page{}, err
			}
		}
	}
	return page{
		title: "Pools", section: "pools", template: "pools", watch: watch{always: true},
		data: map[string]any{
			"Cards": cards, "Few": len(cards) <= fewPools, "Next": next, "First": token == "", "Admin": w.may(r, "admin"), "Broken": broken(checks),
		},
	}, nil
}

// drawSlots adds the slots to a card, and takes its counts from the same reading.
func (w *Web) drawSlots(r *http.Request, c *poolCard) error {
	d := poolData{Pool: c.Pool, Looks: map[string]int{}}
	var err error
	if d.Slots, err = w.client.Pools.Slots(r.Context(), c.Name); err != nil {
		return err
	}
	d.fill(w.options.Now())
	c.Cells, c.Held, c.Waiting, c.Oldest, c.Many = d.Cells, d.Slots.Held, d.Slots.Waiting, d.Slots.Oldest, false
	return nil
}

func (w *Web) card(p operators.PoolState) poolCard {
	c := poolCard{PoolState: p, Chart: chartOf(w.history.of(p.Name), 300, 48), Lately: w.history.lately(p.Name), Many: p.Waiting >= waitingShown, Over: p.Held > p.Capacity}
	if p.Capacity > 0 {
		c.Share = min(100, 100*float64(p.Held)/float64(p.Capacity))
	}
	return c
}

// broken are the dependencies that do not work.
func broken(list []dependency) []dependency {
	return slices.DeleteFunc(list, func(d dependency) bool { return d.State == "ok" })
}
