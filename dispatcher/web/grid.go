package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// A slot looks by what is left of its lease.
const (
	halfLeft     = 0.5
	expiringLeft = 0.2

	holdersShown = 200 // rows of the table; beyond, the page of tasks lists all
)

func (w *Web) routeGrid() {
	w.livePage("/pools/{pool}", w.inOneMoment(w.poolPage))
	w.page("/pools/{pool}/edit", w.editPoolPage)
	w.page("/pools/{pool}/pause", w.pausePoolPage)
	w.page("/pools/{pool}/slots/{slot}/release", w.releasePage)
	w.page("/new-pool", w.newPoolPage)
	w.act("/new-pool", "admin", w.createPool)
	w.act("/pools/{pool}/edit", "admin", w.editPool)
	w.act("/pools/{pool}/pause", "admin", w.pausePool)
	w.act("/pools/{pool}/resume", "admin", w.resumePool)
	w.act("/pools/{pool}/slots/{slot}/release", "admin", w.releaseSlot)
}

type slot = operators.Slot // beside its member Slot

// cell is one slot of the grid.
type cell struct {
	slot

	Look  string // free, reserved, fresh, half, expiring or stale
	Pool  string
	Above bool // beyond the capacity, after that was lowered
}

// Sign tells the looks apart without colour.
func (c cell) Sign() string {
	return map[string]string{"reserved": "…", "fresh": "●", "half": "◐", "expiring": "!", "stale": "✕"}[c.Look]
}

// look of a slot by what is left of its lease.
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
	Size    string // of the cells: large, small or tiny
	Holders []cell
	More    int // holders that are not shown
	Chart   chart
	Lately  happened
	Looks   map[string]int
	Admin   bool
	Release bool
}

func (w *Web) poolPage(r *http.Request) (page, error) {
	name := r.PathValue("pool")
	d := poolData{Admin: w.may(r, "admin"), Looks: map[string]int{}}
	var err error
	if d.Pool, err = w.client.Pools.Get(r.Context(), name); err != nil {
		return page{}, err
	}
	if d.Slots, err = w.client.Pools.Slots(r.Context(), name); err != nil {
		return page{}, err
	}
	d.fill(w.options.Now())
	points := w.history.of(name)
	d.Chart = chartOf(points, 720, 130)
	d.Chart.bars(points, 40, 24, w.history.counting())
	d.Lately = w.history.lately(name)
	return page{
		title: name, section: "pools", template: "pool", data: d, watch: watch{always: true, pool: name},
	}, nil
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

func (w *Web) editPoolPage(r *http.Request) (page, error) {
	p, err := w.client.Pools.Get(r.Context(), r.PathValue("pool"))
	return page{title: "Change " + p.Name, section: "pools", template: "pool-edit", data: map[string]any{
		"Pool": p, "Lease": (time.Duration(p.LeaseMS) * time.Millisecond).String(), "Admin": w.may(r, "admin"),
	}}, err
}

func (w *Web) editPool(r *http.Request) (next, said string, err error) {
	capacity, lease, err := poolForm(r)
	if err != nil {
		return "", "", err
	}
	name := r.PathValue("pool")
	_, err = w.client.Pools.Change(r.Context(), name, operators.PoolPatch{Capacity: operators.Set(capacity), LeaseMS: operators.Set(lease.Milliseconds())})
	return poolPath(name), "pool-changed", err
}

func poolForm(r *http.Request) (capacity int, lease time.Duration, err error) {
	if capacity, err = strconv.Atoi(strings.TrimSpace(r.PostFormValue("capacity"))); err != nil {
		return 0, 0, badForm("Capacity: a whole number, 0 to 10000.")
	}
	if lease, err = time.ParseDuration(strings.TrimSpace(r.PostFormValue("lease"))); err != nil {
		return 0, 0, badForm("Lease: a duration such as 300s or 5m.")
	}
	return capacity, lease, nil
}

func badForm(detail string) error {
	return &operators.Problem{Status: http.StatusUnprocessableEntity, Detail: detail}
}

func poolPath(name string) string { return "/pools/" + url.PathEscape(name) }

func (w *Web) newPoolPage(r *http.Request) (page, error) {
	return page{title: "New pool", section: "pools", template: "pool-new", data: map[string]any{"Admin": w.may(r, "admin")}}, nil
}

func (w *Web) createPool(r *http.Request) (next, said string, err error) {
	capacity, lease, err := poolForm(r)
	if err != nil {
		return "", "", err
	}
	name := strings.TrimSpace(r.PostFormValue("name"))
	if name == "" {
		return "", "", badForm("Name: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit.")
	}
	if _, err = w.client.Pools.Get(r.Context(), name); err == nil {
		return "", "", &operators.Problem{Status: http.StatusConflict, Detail: "There is a pool of that name already: change that one."}
	}
	if !operators.Refused(err, http.StatusNotFound) {
		return "", "", err
	}
	_, err = w.client.Pools.Put(r.Context(), name, operators.PoolSettings{Capacity: capacity, LeaseMS: new(lease.Milliseconds())})
	return poolPath(name), "pool-changed", err
}

func (w *Web) pausePoolPage(r *http.Request) (page, error) {
	p, err := w.client.Pools.Get(r.Context(), r.PathValue("pool"))
	return page{title: "Pause " + p.Name, section: "pools", template: "pool-pause", data: map[string]any{"Pool": p, "Admin": w.may(r, "admin")}}, err
}

func (w *Web) pausePool(r *http.Request) (next, said string, err error) {
	name := r.PathValue("pool")
	_, err = w.client.Pools.Pause(r.Context(), name, r.PostFormValue("reason"))
	return poolPath(name), "paused", err
}

func (w *Web) resumePool(r *http.Request) (next, said string, err error) {
	name := r.PathValue("pool")
	_, err = w.client.Pools.Resume(r.Context(), name)
	return poolPath(name), "resumed", err
}

// releasePage shows the effects of a forced release.
func (w *Web) releasePage(r *http.Request) (page, error) {
	name := r.PathValue("pool")
	slots, err := w.client.Pools.Slots(r.Context(), name)
	if err != nil {
		return page{}, err
	}
	for _, s := range slots.Slots {
		held := s.State == "held" && strconv.Itoa(s.Slot) == r.PathValue("slot")
		if wanted := r.URL.Query().Get("token"); held && (wanted == "" || wanted == strconv.FormatInt(s.Token, 10)) {
			return page{title: fmt.Sprintf("Release slot %d of %s", s.Slot, name), section: "pools", template: "release", data: map[string]any{
				"Pool": name, "Slot": s, "Admin": w.may(r, "admin"),
			}}, nil
		}
	}
	return page{}, &operators.Problem{Status: http.StatusNotFound, Detail: "That grant is over: its slot was freed meanwhile. There is nothing to release."}
}

func (w *Web) releaseSlot(r *http.Request) (next, said string, err error) {
	name := r.PathValue("pool")
	token, err := strconv.ParseInt(r.PostFormValue("token"), 10, 64)
	if err != nil {
		return "", "", badForm("The form does not say which grant is meant.")
	}
	now := r.PostFormValue("now") == "true"
	body := operators.Release{Reason: r.PostFormValue("reason"), Now: now, Token: token}
	path := operators.Path("pools", name, "slots", r.PathValue("slot"), "release")
	said = "release-asked"
	if now {
		said = "released"
	}
	return poolPath(name), said, w.post(r.Context(), path, body)
}
