package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	halfLeft     = 0.5 // if less than this share of the lease is left, a held slot has the phase half
	expiringLeft = 0.2 // if less than this share of the lease is left, a held slot has the phase expiring

	holdersShown = 200 // rows of the table; if there are more holders, the page of tasks lists all
)

type slot = operators.Slot // an alias, so that cell can embed it and also use its field Slot

// slotCell is one slot in the grid of a pool.
type slotCell struct {
	slot

	Phase         string // free, reserved (offered to a waiter), or of a held slot: fresh, half, expiring, stale (lease over)
	Pool          string
	AboveCapacity bool // the number of the slot is not below the capacity, which was lowered
	Mark          mark // mark of its batch
}

// nameEndLength is the number of characters of a device's name that a large cell shows.
const nameEndLength = 6

// Holder returns the device or the caller that holds the slot.
func (c slotCell) Holder() string {
	if c.Caller != "" {
		return c.Caller + " (caller)"
	}
	return c.Device
}

// NameEnd returns the last characters of the device's name. The names in a fleet usually differ at the end.
func (c slotCell) NameEnd() string {
	name := []rune(c.Device)
	return string(name[max(0, len(name)-nameEndLength):])
}

// PhaseText returns the phase of the slot in the words of the legend.
func (c slotCell) PhaseText() string {
	switch c.Phase {
	case "fresh":
		return "held"
	case "half":
		return "past half of its lease"
	case "expiring":
		return "about to expire"
	case "stale":
		return "lease over"
	}
	return c.Phase
}

// Symbol returns a character for the phase of the cell, for readers who cannot distinguish the colours.
func (c slotCell) Symbol() string {
	return map[string]string{"reserved": "…", "fresh": "●", "half": "◐", "expiring": "!", "stale": "✕"}[c.Phase]
}

// leasePhase returns the phase of a held slot at the time now. The phase depends on the part of the lease that is left.
func leasePhase(held slot, leaseLength time.Duration, now time.Time) (phase string) {
	if held.State != "held" || held.LeaseUntil == nil {
		return held.State
	}
	left := held.LeaseUntil.Sub(now)
	switch {
	case left <= 0:
		return "stale"
	case left < time.Duration(expiringLeft*float64(leaseLength)):
		return "expiring"
	case left < time.Duration(halfLeft*float64(leaseLength)):
		return "half"
	}
	return "fresh"
}

type poolData struct {
	Pool        operators.Pool
	Slots       operators.Slots
	Cells       []slotCell
	Size        string // size of the cells: large, small or tiny
	Holders     []slotCell
	More        int // number of holders that are not shown
	Chart       plot
	Lanes       slotTimeline // time line of the slots, not the urgent lane of batches
	Batches     batchMarks
	Recent      poolCounts
	Waits       waitSummary
	Usage       policyUsage
	Broken      []dependency
	PhaseCounts map[string]int
	Admin       bool
}

// poolRedisData holds the parts of a pool's page that need Redis.
type poolRedisData struct {
	waits  waitSummary
	checks []dependency
	usage  policyUsage
}

// readRedisData reads the parts of a pool's page that need Redis. It reads the parts concurrently, so that each of them may use the whole
// time limit if Redis is slow.
func (p *poolPages) readRedisData(r *http.Request) (poolRedisData, error) {
	waiting := make(chan waitSummary, 1)
	reading := rescue.Async(func() error {
		found, err := newWaitSummaryReader(p.api, p.waitsCache, p.now, "pools")(r)
		waiting <- found
		return err
	})
	used := make(chan policyUsage, 1)
	using := rescue.Async(func() error {
		found, err := p.readUsage(r, r.PathValue("id"))
		used <- found
		return err
	})
	checks := p.system.checkDependencies(r.Context())
	if err := cmp.Or(<-reading, <-using); err != nil {
		return poolRedisData{}, err
	}
	return poolRedisData{waits: <-waiting, checks: checks, usage: <-used}, nil
}

// loadPage returns the page of one pool. redisData has the parts that need Redis.
func (p *poolPages) loadPage(r *http.Request, redisData poolRedisData) (page, error) {
	name := r.PathValue("id")
	d := poolData{Admin: p.mayOfferActions(r, "admin"), PhaseCounts: map[string]int{}, Waits: redisData.waits, Broken: filterUnhealthy(redisData.checks), Usage: redisData.usage}
	var err error
	if d.Pool, err = p.api.Pools.Get(r.Context(), name); err != nil {
		return page{}, err
	}
	if d.Slots, err = p.api.Pools.Slots(r.Context(), name); err != nil {
		return page{}, err
	}
	d.Waits.Remedies = p.newRemedies(r)
	d.Usage.Limited = len(d.Pool.Limits) > 0
	d.fillCells(p.now())
	if err := p.addCharts(r, &d); err != nil {
		return page{}, err
	}
	d.Recent = p.history.recentCounts(name)
	return page{
		title: name, section: "pools", template: "pool", data: d, watch: updateTrigger{everyTick: true, pool: name},
	}, nil
}

// addCharts adds to data the chart, the time line of the slots, and the marks (colour, pattern and letter) of the batches.
func (p *poolPages) addCharts(r *http.Request, data *poolData) error {
	name, span := data.Pool.Name, chosenRange(r)
	series, err := p.readSeries(r, name, span.name)
	if err != nil {
		return err
	}
	data.Chart = newPlot(series, span, data.Slots.Held, data.Slots.Capacity, p.history.recentDenials(name))
	data.Chart.Ranges = rangeChoices(span, func(name string) string { return "range=" + name })
	acts, err := p.readOperatorActs(r, name, data.Chart.Span)
	if err != nil {
		return err
	}
	data.Chart.markOperatorActs(acts)
	timeline, err := p.readHoldings(r, name, span)
	if err != nil {
		return err
	}
	data.Batches = assignMarks(data.Slots.Slots, timeline.holdings)
	for i := range data.Cells {
		data.Cells[i].Mark = data.Batches.markOf(data.Cells[i].Batch)
	}
	data.Lanes = newTimeline(timeline, data.Batches, data.Cells)
	return nil
}

// readSeries returns the history of a pool in timeRange. The history may be cached, for at most countEvery.
func (p *poolPages) readSeries(r *http.Request, pool, timeRange string) (operators.Series, error) {
	return p.seriesCache.getOrRead(r.Context(), pool+" "+timeRange, p.now(), func(ctx context.Context) (operators.Series, error) {
		return p.api.Pools.Series(ctx, pool, operators.SeriesQuery{Range: timeRange})
	})
}

// readOperatorActs returns the newest acts of operators on a pool in the last span, newest first. It omits acts on single tasks.
func (p *poolPages) readOperatorActs(r *http.Request, pool string, span time.Duration) (acts []operators.Event, err error) {
	return p.actsCache.getOrRead(r.Context(), pool+" "+span.String(), p.now(), func(context.Context) ([]operators.Event, error) {
		query := url.Values{"pool": {pool}, "actor_kind": {"operator"}, "since": {p.now().Add(-span).Format(time.RFC3339)}, "page_size": {"100"}}
		var list operators.EventList
		err := p.api.get(r, operators.Path("events"), query, &list)
		return slices.DeleteFunc(list.Events, func(e operators.Event) bool { return strings.HasPrefix(e.Kind, "task.") }), err
	})
}

// fillCells makes the cells of the grid and the counts of their phases from the slots, at the time now.
func (d *poolData) fillCells(now time.Time) {
	lease := time.Duration(d.Pool.LeaseMS) * time.Millisecond
	d.Cells = make([]slotCell, len(d.Slots.Slots))
	for i, s := range d.Slots.Slots {
		c := slotCell{slot: s, Phase: leasePhase(s, lease, now), Pool: d.Pool.Name, AboveCapacity: s.Slot >= d.Slots.Capacity}
		d.Cells[i] = c
		d.PhaseCounts[c.Phase]++
		if s.State == "held" {
			d.Holders = append(d.Holders, c)
		}
	}
	if d.More = len(d.Holders) - holdersShown; d.More > 0 {
		d.Holders = d.Holders[:holdersShown]
	}
	switch n := len(d.Cells); {
	case n <= 150:
		d.Size = "large"
	case n <= 1500:
		d.Size = "small"
	default:
		d.Size = "tiny"
	}
}
