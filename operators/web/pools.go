package web

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	poolsShown        = 16   // maximum number of pools that are shown as cards; if there are more, each pool is a row
	maxWaitingCounted = 1000 // waiting tasks are counted up to this number in a list of pools
	fewPools          = 4    // maximum number of pools whose cards show their slots
	fewSlots          = 200
)

// poolPages show the list of pools (as cards here, as rows in pool_rows.go), and each pool with its slots
// (grid.go, with the chart of plot.go and the time line of timeline.go).
type poolPages struct {
	*frame

	api           client
	system        System
	history       *history
	seriesCache   *ttlCache[operators.Series]
	holdingsCache *ttlCache[slotHoldings]
	waitsCache    *ttlCache[waitSummary]
	usageCache    *ttlCache[[]policyUse]
}

func (p *poolPages) registerRoutes(to *site) {
	to.addLivePageWithChecks("/{$}", p.system, p.list)
	addLivePageWithRedis(to, "/pools/{id}", p.readRedisData, p.show)
	to.addPage("/pools/{id}/edit", p.editPage)
	to.addPage("/pools/{id}/pause", p.pausePage)
	to.addPage("/pools/{id}/slots/{slot}", p.slotPage)
	to.addPage("/pools/{id}/slots/{slot}/release", p.releasePage)
	to.addPage("/new-pool", p.createPage)
	to.addForm("/new-pool", "admin", p.create)
	to.addForm("/pools/{id}/edit", "admin", p.edit)
	to.addForm("/pools/{id}/pause", "admin", p.api.entryAction("pools", "pause", "paused"))
	to.addForm("/pools/{id}/resume", "admin", p.api.entryAction("pools", "resume", "resumed"))
	to.addForm("/pools/{id}/slots/{slot}/release", "admin", p.release)
}

// poolCard is one pool on the first page.
type poolCard struct {
	operators.PoolState

	Chart  chart
	Recent poolCounts
	Many   bool    // more tasks wait than were counted
	Share  float64 // filled part of the bar in percent
	Cells  []cell  // slots; only if there are few pools
	Over   bool    // more slots are held than the capacity, because an operator lowered it
}

func (p *poolPages) list(r *http.Request, checks []dependency) (page, error) {
	totals, err := p.api.Pools.Totals(r.Context())
	if err != nil {
		return page{}, err
	}
	if filters := nonEmptyParams(r.URL.Query(), "name", "sort", "only_trouble"); totals.Pools > poolsShown || len(filters) > 0 {
		return p.rowsPage(r, filters, totals, checks)
	}
	var list operators.PoolList
	if err := p.api.get(r, operators.Path("pools"), url.Values{"page_size": {strconv.Itoa(poolsShown)}}, &list); err != nil {
		return page{}, err
	}
	cards := make([]poolCard, len(list.Pools))
	for i, pool := range list.Pools {
		cards[i] = p.newCard(pool)
		if len(list.Pools) <= fewPools && pool.Capacity <= fewSlots {
			if err := p.drawSlots(r, &cards[i]); err != nil {
				return page{}, err
			}
		}
	}
	return page{
		title: "Pools", section: "pools", template: "pools", watch: watch{everyTick: true},
		data: map[string]any{
			"Cards": cards, "Few": len(cards) <= fewPools, "Admin": p.may(r, "admin"), "Broken": unhealthy(checks),
		},
	}, nil
}

// drawSlots adds the pool's slots to its card. It also replaces the counts of the card by the
// counts of the read that returned the slots, so that the counts and the slots agree.
func (p *poolPages) drawSlots(r *http.Request, c *poolCard) error {
	d := poolData{Pool: c.Pool, PhaseCounts: map[string]int{}}
	var err error
	if d.Slots, err = p.api.Pools.Slots(r.Context(), c.Name); err != nil {
		return err
	}
	d.fillCells(p.now())
	c.Cells, c.Held, c.Waiting, c.Oldest, c.Many = d.Cells, d.Slots.Held, d.Slots.Waiting, d.Slots.Oldest, false
	return nil
}

func (p *poolPages) newCard(pool operators.PoolState) poolCard {
	return poolCard{
		PoolState: pool, Chart: newHourChart(p.history.lastHour(pool.Name), 300, 48), Recent: p.history.recentCounts(pool.Name),
		Many: pool.Waiting >= maxWaitingCounted, Over: pool.Held > pool.Capacity, Share: sharePercent(pool.Held, pool.Capacity),
	}
}
