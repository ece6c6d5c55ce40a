package web

import (
	"maps"
	"net/http"
	"net/url"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	poolRowsPerPage     = 120 // pools on one page; on a page of more than 100, the API counts up to 10 devices in line per pool
	maxDisagreeingShown = 10  // pools with conflicts or drift that are named
)

// poolColumn is the head of a column in the list of pools.
type poolColumn struct {
	Name, Title, Class string
	Query              string // query that sorts by this column; empty if the list cannot be sorted by it
	Sorted             string // ascending or descending; empty if the list is sorted by another column
}

// newRowsPage returns the page that lists the pools that match filters as rows. totals are the sums over all pools. If the visitor chose no
// order, the pools with the worst trouble come first.
func (p *poolPages) newRowsPage(r *http.Request, filters url.Values, totals operators.PoolTotals, redisData poolListRedisData) (page, error) {
	pager := newPager(r, filters)
	query := pager.query(poolRowsPerPage)
	if !filters.Has("sort") {
		query.Set("sort", "trouble")
	}
	var list operators.PoolList
	if err := p.api.get(r, operators.Path("pools"), query, &list); err != nil {
		return page{}, err
	}
	rows := make([]shownPool, len(list.Pools))
	for i, pool := range list.Pools {
		rows[i] = p.newShownPool(pool, redisData.whys)
	}
	named, more := p.history.poolsWithDrift(maxDisagreeingShown)
	return page{
		title: "Pools", section: "pools", template: "pool-rows", watch: updateTrigger{everyTick: true},
		data: map[string]any{
			"Rows": rows, "Totals": totals, "Columns": poolColumns(filters, query.Get("sort")), "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(),
			"Name": filters.Get("name"), "Only": filters.Get("only_trouble") == "true", "Sort": filters.Get("sort"), "Query": filters.Encode(),
			"Disagreed": map[string]any{"Pools": named, "More": more}, "Admin": p.mayOfferActions(r, "admin"), "Broken": filterUnhealthy(redisData.checks),
		},
	}, nil
}

// poolColumns returns the heads of the columns, for a list with these filters that is sorted by sortedBy. The template pool-row has the
// cell of each column, in the same order. The field `sort` of a column is a value of the API's parameter `sort`. It is empty if the list
// cannot be sorted by the column.
func poolColumns(filters url.Values, sortedBy string) []poolColumn {
	columns := []struct{ name, sort, class, title string }{
		{"Pool", "name", "", "By name"},
		{"Share", "held", "", "The largest share of the capacity first"},
		{"Held", "", "n", "Slots that are held now"},
		{"Capacity", "", "n", "Slots of the pool"},
		{"Tasks wait", "waiting", "n", "Tasks that wait, for any reason. The most first"},
		{"Granted/min", "", "n", "Slots granted in the last minute, by all replicas"},
		{"State", "", "", "Whether the pool grants slots"},
		{"Trouble", "trouble", "", "Worst first, then by waiting tasks, rounded to a power of two"},
	}
	list := make([]poolColumn, len(columns))
	for i, c := range columns {
		list[i] = poolColumn{Name: c.name, Title: c.title, Class: c.class}
		if c.sort == "" {
			continue
		}
		query := maps.Clone(filters)
		query.Set("sort", c.sort)
		list[i].Query = query.Encode()
		if c.sort == sortedBy {
			list[i].Sorted = "descending"
			if c.sort == "name" {
				list[i].Sorted = "ascending"
			}
		}
	}
	return list
}

// heldSlotsPercent returns the filled part of a pool's bar: the held slots in percent of the capacity, at most 100.
func heldSlotsPercent(held, capacity int) (percent float64) {
	if held == 0 {
		return 0
	}
	return min(100, 100*float64(held)/float64(max(capacity, 1)))
}

// troubleText returns the words for a trouble code of a pool.
func troubleText(code string) string {
	return map[string]string{
		operators.TroubleOverCapacity: "over capacity",
		operators.TroubleFailing:      "many attempts fail",
		operators.TroubleStalled:      "nothing granted for 10 min",
		operators.TroublePaused:       "paused while tasks wait",
		operators.TroubleNoSlots:      "no slots",
		operators.TroubleClosed:       "closed while tasks wait",
	}[code]
}
