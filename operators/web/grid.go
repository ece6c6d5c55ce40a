package web

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

// The look of a slot depends on the part of its lease that is left.
const (
	halfLeft     = 0.5
	expiringLeft = 0.2

	holdersShown = 200 // rows of the table; if there are more holders, the page of tasks lists all
)

type slot = operators.Slot // an alias, so that cell can embed it and also use its field Slot

// cell is one slot of the grid.
type cell struct {
	slot

	Look  string // free, reserved, fresh, half, expiring or stale
	Pool  string
	Above bool // its number is beyond the capacity, because the capacity was lowered
	Mark  mark // mark of its batch
}

// endShown is the number of characters of a device's name that a large cell shows.
const endShown = 6

// Holder returns the device or the caller that holds the slot.
func (c cell) Holder() string {
	if c.Caller != "" {
		return c.Caller + " (caller)"
	}
	return c.Device
}

// End returns the last characters of the device's name. The names in a fleet usually differ at the end.
func (c cell) End() string {
	name := []rune(c.Device)
	return string(name[max(0, len(name)-endShown):])
}

// Said returns the look in the words of the legend.
func (c cell) Said() string {
	switch c.Look {
	case "fresh":
		return "held"
	case "half":
		return "past half of its lease"
	case "expiring":
		return "about to expire"
	case "stale":
		return "lease over"
	}
	return c.Look
}

// Sign returns a character that distinguishes the looks without colour.
func (c cell) Sign() string {
	return map[string]string{"reserved": "…", "fresh": "●", "half": "◐", "expiring": "!", "stale": "✕"}[c.Look]
}

// look returns the look of a slot, by the part of its lease that is left.
func look(s slot, lease time.Duration, now time.Time) string {
	if s.State != "held" || s.LeaseUntil == nil {
		return s.State
	}
	left := s.LeaseUntil.Sub(now)
	switch {
	case left <= 0:
		return "stale"
	case left < time.Duration(expiringLeft*float64(lease)):
		return "expiring"
	case left < time.Duration(halfLeft*float64(lease)):
		return "half"
	}
	return "fresh"
}

type poolData struct {
	Pool    operators.Pool
	Slots   operators.Slots
	Cells   []cell
	Size    string // size of the cells: large, small or tiny
	Holders []cell
	More    int // number of holders that are not shown
	Chart   plot
	Lanes   lanes
	Batches batchMarks
	Lately  happened
	Waits   waits
	Usage   usage
	Broken  []dependency
	Looks   map[string]int
	Admin   bool
}

// poolAsked holds the parts of a pool's page that need Redis.
type poolAsked struct {
	waits  waits
	checks []dependency
	usage  usage
}

// ask reads the parts that need Redis concurrently, so that each may use the whole time limit if Redis
// is slow.
func (p *poolPages) ask(r *http.Request) (poolAsked, error) {
	waiting := make(chan waits, 1)
	reading := rescue.Async(func() error {
		found, err := waitsNow(p.api, p.waits, p.now, "pools")(r)
		waiting <- found
		return err
	})
	used := make(chan usage, 1)
	using := rescue.Async(func() error {
		found, err := p.usageOf(r, r.PathValue("id"))
		used <- found
		return err
	})
	checks := p.system.dependencies(r.Context())
	if err := cmp.Or(<-reading, <-using); err != nil {
		return poolAsked{}, err
	}
	return poolAsked{waits: <-waiting, checks: checks, usage: <-used}, nil
}

func (p *poolPages) show(r *http.Request, asked poolAsked) (page, error) {
	name := r.PathValue("id")
	d := poolData{Admin: p.may(r, "admin"), Looks: map[string]int{}, Waits: asked.waits, Broken: broken(asked.checks), Usage: asked.usage}
	var err error
	if d.Pool, err = p.api.Pools.Get(r.Context(), name); err != nil {
		return page{}, err
	}
	if d.Slots, err = p.api.Pools.Slots(r.Context(), name); err != nil {
		return page{}, err
	}
	d.Waits.Remedies = p.remedies(r)
	d.Usage.Limited = len(d.Pool.Limits) > 0
	d.fill(p.now())
	if err := p.draw(r, &d); err != nil {
		return page{}, err
	}
	d.Lately = p.history.lately(name)
	return page{
		title: name, section: "pools", template: "pool", data: d, watch: watch{always: true, pool: name},
	}, nil
}

// draw adds the chart, the time line of the slots and the marks of the batches.
func (p *poolPages) draw(r *http.Request, d *poolData) error {
	name, asked := d.Pool.Name, rangeOf(r)
	if asked == "1h" {
		d.Chart = plotOfHour(p.history.of(name), p.history.counting())
	} else {
		series, err := p.series.read(r.Context(), name+" "+asked, p.now(), func(ctx context.Context) (operators.Series, error) {
			return p.api.Pools.Series(ctx, name, asked)
		})
		if err != nil {
			return err
		}
		d.Chart = plotOfDays(series, asked)
	}
	d.Chart.Ranges = rangesOf(name, asked)
	line, err := p.past(r, name, asked)
	if err != nil {
		return err
	}
	d.Batches = marksOf(d.Slots.Slots, line.list)
	for i := range d.Cells {
		d.Cells[i].Mark = d.Batches.of(d.Cells[i].Batch)
	}
	d.Lanes = lanesOf(line, d.Batches, d.Cells)
	return nil
}

func (d *poolData) fill(now time.Time) {
	lease := time.Duration(d.Pool.LeaseMS) * time.Millisecond
	d.Cells = make([]cell, len(d.Slots.Slots))
	for i, s := range d.Slots.Slots {
		c := cell{slot: s, Look: look(s, lease, now), Pool: d.Pool.Name, Above: s.Slot >= d.Slots.Capacity}
		d.Cells[i] = c
		d.Looks[c.Look]++
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
