package web

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// A page is read in the quick lane first. One that takes longer than viewSlow is read in
// the slow lane from then on, in which two pages are read at once, until it is quick again. All
// of them together take no more connections than the ledger has for snapshots.
const (
	viewSlow  = time.Second / 2
	viewTime  = 5 * time.Second // the longest that one page may take
	viewsRead = 4               // quick pages that are read at once
	slowRead  = 2
	viewRests = 3 // times as long as it took, a page is left alone
)

// watch selects the events after which a page is read again.
type watch struct {
	always bool          // something changes without an event
	every  time.Duration // something slow does; 0: nothing
	any    bool          // all events
	pool   string
	batch  int64
	task   int64
	device string
}

// concerned says whether the event may have changed the page.
func (w watch) concerned(e event) bool {
	return w.any || w.pool != "" && w.pool == e.Pool || w.batch != 0 && w.batch == e.Batch ||
		w.task != 0 && w.task == e.Task || w.device != "" && w.device == e.Device
}

// viewKey identifies a view: visitors with the same key see the same page.
type viewKey struct {
	address string // path and query
	role    string
}

// view is one page that somebody has open, for all who have it open.
type view struct {
	viewers int
	state   *viewState
	changed bool      // since its last reading began
	reading bool      // goes on
	read    time.Time // when the last one began
	rests   time.Time // until when it is left alone
	slow    bool      // to read, the last time
}

// viewState never changes; a successor replaces it.
type viewState struct {
	sheet *sheet // nil: not read yet
	err   error  // why it is not newer
	next  chan struct{}
}

// hub has the open pages read again, each once however many look at it. No page waits
// for another that is slow to read.
type hub struct {
	render   func(ctx context.Context, key viewKey) (*sheet, error)
	panicked rescue.Told
	now      func() time.Time
	life     context.Context //nolint:containedctx // readings outlast the tick or visitor that they began with
	quick    chan struct{}
	slow     chan struct{}

	mu    sync.Mutex
	views map[viewKey]*view
}

func newHub(life context.Context, s *site, panicked rescue.Told) *hub {
	return &hub{
		render: s.read, panicked: panicked, now: s.now, life: life, views: map[viewKey]*view{},
		quick: make(chan struct{}, viewsRead), slow: make(chan struct{}, slowRead),
	}
}

// join has a page read until leave.
func (h *hub) join(key viewKey) (leave func()) {
	h.mu.Lock()
	v := h.views[key]
	if v == nil {
		v = &view{state: &viewState{next: make(chan struct{})}}
		h.views[key] = v
	}
	v.viewers++
	first := v.state.sheet == nil && !v.reading
	if first {
		v.begin(h.now())
	}
	h.mu.Unlock()
	if first {
		h.read(key, v)
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if v.viewers--; v.viewers == 0 {
			delete(h.views, key)
		}
	}
}

// watched says whether anybody has a page open.
func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.views) > 0
}

// state of a page that somebody has joined.
func (h *hub) state(key viewKey) *viewState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.views[key].state
}

// tick has the pages read again that the events concern. It waits for none of them.
func (h *hub) tick(events []event, all bool) {
	for key, v := range h.due(events, all) {
		h.panicked.Go("reading a page", func() { h.read(key, v) })
	}
}

// due begins with the views that are to be read now.
func (h *hub) due(events []event, all bool) map[viewKey]*view {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, due := h.now(), map[viewKey]*view{}
	for key, v := range h.views {
		v.changed = v.changed || all || v.concerned(events, now)
		if v.changed && !v.reading && !now.Before(v.rests) {
			v.begin(now)
			due[key] = v
		}
	}
	return due
}

func (v *view) begin(now time.Time) { v.changed, v.reading, v.read = false, true, now }

// concerned says whether the view may show something else now.
func (v *view) concerned(events []event, now time.Time) bool {
	s := v.state
	if s.sheet == nil || s.err != nil || s.sheet.watch.always {
		return true
	}
	if every := s.sheet.watch.every; every > 0 && now.Sub(v.read) >= every {
		return true
	}
	return slices.ContainsFunc(events, s.sheet.watch.concerned)
}

// lane is where a view is read next.
func (h *hub) lane(v *view) (room chan struct{}, within time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.slow {
		return h.slow, viewTime
	}
	return h.quick, viewSlow
}

// timeOf returns the context of a reading. In the quick lane its deadline is hidden: a page that
// is late there is read again in the slow lane, and leaves nothing out for lack of time.
func (h *hub) timeOf(within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(h.life, within)
	if within == viewSlow {
		ctx = withoutDeadline{ctx}
	}
	return ctx, cancel
}

// withoutDeadline is a context that ends at its deadline, but does not tell when that is.
type withoutDeadline struct{ context.Context } //nolint:containedctx // it is a context

// Deadline reports that there is none.
func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// read renders a page. One that is too slow for the quick lane is due with the next tick.
func (h *hub) read(key viewKey, v *view) {
	room, within := h.lane(v)
	room <- struct{}{}
	defer func() { <-room }()
	ctx, cancel := h.timeOf(within)
	defer cancel()
	began := h.now()
	var made *sheet
	err := h.panicked.Tell("reading the page "+key.address, rescue.Call(func() (err error) {
		made, err = h.render(ctx, key)
		return err
	}))
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	took := now.Sub(began)
	v.reading, v.rests = false, now.Add(viewRests*took)
	if err != nil && ctx.Err() != nil && !v.slow {
		v.slow, v.changed, v.rests = true, true, now
		return
	}
	v.slow = took > viewSlow
	v.turn(made, err)
}

// fail tells everybody that nothing can be read.
func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		v.turn(nil, err)
	}
}

// turn replaces the state of a view and wakes its streams. Without a sheet the one
// before stays.
func (v *view) turn(made *sheet, err error) {
	before := v.state
	if made == nil {
		made = before.sheet
	}
	v.state = &viewState{sheet: made, err: err, next: make(chan struct{})}
	close(before.next)
}
