package web

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	poolsShown       = 16   // maximum number of pools that are shown as cards, and of pools with a sentence why their tasks wait
	maxDevicesInLine = 1000 // the API counts the devices in line of a pool up to this number
	fewPools         = 4    // maximum number of pools whose cards show their slots
	fewSlots         = 200
)

// poolPages show the list of pools and each pool with its slots. The list consists of cards (in this file). If there are more than poolsShown
// pools, or if the visitor filters or sorts them, the list is a table (pool_rows.go). The page of one pool is in grid.go, the chart in
// plot.go, and the time line of its slots in timeline.go.
type poolPages struct {
	*pageSender

	api           client
	system        System
	history       *recentPoolCounts
	seriesCache   *ttlCache[operators.Series]
	actsCache     *ttlCache[[]operators.Event]
	holdingsCache *ttlCache[slotHoldings]
	waitsCache    *ttlCache[waitSummary]
	usageCache    *ttlCache[[]policyUse]
	whysCache     *ttlCache[map[string]waitSentence]
}

func (p *poolPages) registerRoutes(target *site) {
	addLivePageWithRedis(target, "/{$}", p.readListRedisData, p.loadList)
	addLivePageWithRedis(target, "/pools/{id}", p.readRedisData, p.loadPage)
	target.addPage("/pools/{id}/edit", p.loadEditPage)
	target.addPage("/pools/{id}/pause", p.loadPausePage)
	target.addPage("/pools/{id}/slots/{slot}", p.loadSlotPage)
	target.addPage("/pools/{id}/slots/{slot}/release", p.loadReleasePage)
	target.addPage("/new-pool", p.loadCreatePage)
	target.addPage("/pause-all", p.loadPauseAllPage)
	target.addForm("/pause-all", "admin", p.pauseAllPools)
	target.addForm("/resume-mine", "admin", p.resumePoolsOfVisitor)
	target.addForm("/new-pool", "admin", p.createPool)
	target.addForm("/pools/{id}/edit", "admin", p.editPool)
	target.addForm("/pools/{id}/pause", "admin", p.api.newEntryAction("pools", "pause", "paused"))
	target.addForm("/pools/{id}/resume", "admin", p.api.newEntryAction("pools", "resume", "resumed"))
	target.addForm("/pools/{id}/slots/{slot}/release", "admin", p.releaseSlot)
}

// shownPool is one pool of the list, as a card or as a row.
type shownPool struct {
	operators.PoolState

	Recent poolCounts
	Why    waitSentence // why its tasks wait; only for the pools with the worst trouble
	Share  float64      // filled part of the bar in percent
	Closed bool
	Over   bool       // more slots are held than the capacity, because an operator lowered it
	Chart  chart      // only of a card
	Cells  []slotCell // slots; only of a card, if there are few pools
}

// Many reports whether more devices may be in line than were counted.
func (c shownPool) Many() bool { return c.Waiting >= maxDevicesInLine }

// newShownPool returns a pool without the parts that only cards have.
func (p *poolPages) newShownPool(pool operators.PoolState, whyByPool map[string]waitSentence) shownPool {
	return shownPool{
		PoolState: pool, Recent: p.history.recentCounts(pool.Name), Why: whyByPool[pool.Name], Share: heldSlotsPercent(pool.Held, pool.Capacity),
		Closed: pool.OpensAt != nil && pool.OpensAt.After(p.now()), Over: pool.Held > pool.Capacity,
	}
}

// loadList returns the page with the pools, as cards or as rows, those with the worst trouble first.
func (p *poolPages) loadList(r *http.Request, redisData poolListRedisData) (page, error) {
	totals, err := p.api.Pools.Totals(r.Context(), operators.All{})
	if err != nil {
		return page{}, err
	}
	if filters := nonEmptyParams(r.URL.Query(), "name", "sort", "only_trouble"); totals.Pools > poolsShown || len(filters) > 0 {
		return p.newRowsPage(r, filters, totals, redisData)
	}
	var list operators.PoolList
	if err := p.api.get(r, operators.Path("pools"), url.Values{"sort": {"trouble"}, "page_size": {strconv.Itoa(poolsShown)}}, &list); err != nil {
		return page{}, err
	}
	cards := make([]shownPool, len(list.Pools))
	for i, pool := range list.Pools {
		cards[i] = p.newShownPool(pool, redisData.whys)
		if err := p.drawPoolCard(r, &cards[i], len(list.Pools) <= fewPools && pool.Capacity <= fewSlots); err != nil {
			return page{}, err
		}
	}
	slices.SortStableFunc(cards, func(a, b shownPool) int { return b.severity() - a.severity() })
	return page{
		title: "Pools", section: "pools", template: "pools", watch: updateTrigger{everyTick: true},
		data: map[string]any{
			"Cards": cards, "Few": len(cards) <= fewPools, "Admin": p.mayOfferActions(r, "admin"), "Broken": filterUnhealthy(redisData.checks),
		},
	}, nil
}

// severity returns how much a pool needs attention: 2 if it has trouble, 1 if its Why.Stuck is not empty, otherwise 0.
func (c shownPool) severity() int {
	switch {
	case len(c.Trouble) > 0:
		return 2
	case c.Why.Stuck != "":
		return 1
	}
	return 0
}

// drawSlots adds the pool's slots to card. It also replaces the counts of the card by the counts of the read that returned the slots, so
// that the counts and the slots agree.
func (p *poolPages) drawSlots(r *http.Request, card *shownPool) error {
	d := poolData{Pool: card.Pool, PhaseCounts: map[string]int{}}
	var err error
	if d.Slots, err = p.api.Pools.Slots(r.Context(), card.Name); err != nil {
		return err
	}
	d.fillCells(p.now())
	card.Cells, card.Held, card.Waiting, card.Oldest = d.Cells, d.Slots.Held, d.Slots.Waiting, d.Slots.Oldest
	return nil
}

// drawPoolCard adds the chart to card, and the slots if withSlots is true.
func (p *poolPages) drawPoolCard(r *http.Request, card *shownPool, withSlots bool) error {
	if withSlots {
		if err := p.drawSlots(r, card); err != nil {
			return err
		}
	}
	series, err := p.readSeries(r, card.Name, lastHour)
	if err != nil {
		return err
	}
	card.Chart = newChart(series, timeRanges()[0], card.Held, card.Capacity, 300, 48)
	return nil
}
