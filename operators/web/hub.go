package web

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// A page is read in the quick lane first. If reading takes longer than viewSlow, the page is read in
// the slow lane from then on, until it is quick again. The slow lane reads two pages at once. Both
// lanes together use no more connections than the ledger has for snapshots.
const (
	viewSlow  = time.Second / 2
	viewTime  = 5 * time.Second // time limit for reading one page
	viewsRead = 4               // quick pages that are read concurrently
	slowRead  = 2
	viewRests = 3 // after a read, a page is not read again for this multiple of the time that the read took
)

// watch selects the events after which a page is read again.
type watch struct {
	always bool          // the page is read with each tick, because it changes without events
	every  time.Duration // the page is also read at this interval; 0 means that it is not
	any    bool          // all events concern the page
	pool   string
	batch  int64
	task   int64
	device string
}

// concerned reports whether the event may have changed the page.
func (w watch) concerned(e event) bool {
	return w.any || w.pool != "" && w.pool == e.Pool || w.batch != 0 && w.batch == e.Batch ||
		w.task != 0 && w.task == e.Task || w.device != "" && w.device == e.Device
}

// viewKey identifies a view. All visitors with the same key see the same page.
type viewKey struct {
	address string // path and query
	role    string
}

// view is one page for all viewers that have it open.
type view struct {
	viewers int
	state   *viewState
	changed bool      // the page may have changed since its last read began
	reading bool      // a read is in progress
	read    time.Time // when the last read began
	rests   time.Time // the page is not read before this time
	slow    bool      // the last read was slow
}

// viewState is the last read page. It is never modified; a new state replaces it.
type viewState struct {
	sheet *sheet // nil if the page was not read yet
	err   error  // why the sheet is not up to date
	next  chan struct{}
}

// hub reads the open pages again, each page once for all its viewers. No page waits for another page
// that is slow to read.
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

// join keeps a page up to date until leave is called. If nobody else reads it, join reads the page
// before it returns.
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

// watched reports whether any page is open.
func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.views) > 0
}

// state returns the state of a page. The caller must have joined it.
func (h *hub) state(key viewKey) *viewState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.views[key].state
}

// tick starts reading the pages that the events concern. It does not wait until they are read.
func (h *hub) tick(events []event, all bool) {
	for key, v := range h.due(events, all) {
		h.panicked.Go("reading a page", func() { h.read(key, v) })
	}
}

// due marks the views that are to be read now as being read, and returns them.
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

// concerned reports whether the view may have changed.
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

// lane returns the lane in which a view is read next, and its time limit.
func (h *hub) lane(v *view) (room chan struct{}, within time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.slow {
		return h.slow, viewTime
	}
	return h.quick, viewSlow
}

// timeOf returns the context of a read. In the quick lane it hides the deadline, so that the loaders
// leave nothing out for lack of time. A page that is late in the quick lane is read again in the slow
// lane.
func (h *hub) timeOf(within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(h.life, within)
	if within == viewSlow {
		ctx = withoutDeadline{ctx}
	}
	return ctx, cancel
}

// withoutDeadline is a context that ends at its deadline, but does not reveal the deadline.
type withoutDeadline struct{ context.Context } //nolint:containedctx // it is a context

// Deadline reports that there is no deadline.
func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// read renders a page. If the page is too slow for the quick lane, it is due again at the next tick.
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

// fail sets the error on all views when no page can be read.
func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		v.turn(nil, err)
	}
}

// turn replaces the state of a view and wakes its streams. If made is nil, the previous sheet stays.
func (v *view) turn(made *sheet, err error) {
	before := v.state
	if made == nil {
		made = before.sheet
	}
	v.state = &viewState{sheet: made, err: err, next: make(chan struct{})}
	close(before.next)
}
