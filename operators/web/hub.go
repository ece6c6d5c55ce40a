package web

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// The hub has two groups of concurrent reads, which it calls lanes. A page is read in the quick lane first.
// If reading takes longer than quickReadLimit, the page is read in the slow lane from then on, until it is
// quick again. Both lanes together use no more connections than the ledger has for snapshots.
const (
	quickReadLimit = time.Second / 2
	slowReadLimit  = 5 * time.Second // time limit for reading one page
	maxQuickReads  = 4               // quick pages that are read concurrently
	maxSlowReads   = 2
	restFactor     = 3 // after a read, a page is not read again for this multiple of the time that the read took
)

// updateTrigger says when an open page is read again: after which events, and at which times. Each of the fields pool, batch, task and device
// names at most one object. A page with the zero updateTrigger never changes, so it has no stream.
type updateTrigger struct {
	everyTick bool          // the page is read with each tick, because it changes without events
	every     time.Duration // interval at which the page is read without an event; 0 means never
	allEvents bool          // all events concern the page
	pool      string
	batch     int64
	task      int64
	device    string
}

// matches reports whether the event e may have changed the page.
func (w updateTrigger) matches(e event) bool {
	return w.allEvents || w.pool != "" && (w.pool == e.Pool || strings.HasPrefix(e.Kind, "pools.")) || w.batch != 0 && w.batch == e.Batch ||
		w.task != 0 && w.task == e.Task || w.device != "" && w.device == e.Device
}

// viewKey identifies a view. All visitors with the same key see the same page.
type viewKey struct {
	address string // path and query
	role    string
}

// view is one page for all viewers that have it open.
type view struct {
	viewers   int
	state     *viewState
	changed   bool      // the page may have changed since its last read began
	isReading bool      // a read is in progress
	readAt    time.Time // when the last read began
	restUntil time.Time // the page is not read before this time
	wasSlow   bool      // the last read was slow
}

// viewState is the result of the last read of a page. It is never modified. A new state replaces it.
type viewState struct {
	page     *renderedPage // nil if the page was not read yet
	err      error         // why page is not up to date; nil if it is
	replaced chan struct{} // closed when a new state replaces this one
}

// hub reads the open pages again, each page once for all its viewers. No page waits for another page that is slow to read.
type hub struct {
	render     func(ctx context.Context, key viewKey) (*renderedPage, error)
	panicked   rescue.PanicHandler
	now        func() time.Time
	baseCtx    context.Context //nolint:containedctx // readings outlast the tick or visitor that they began with
	quickReads chan struct{}
	slowReads  chan struct{}

	mu    sync.Mutex
	views map[viewKey]*view
}

// newHub returns a hub that renders the live pages of the site pages. No page is open yet.
func newHub(baseCtx context.Context, pages *site, panicked rescue.PanicHandler) *hub {
	return &hub{
		render: pages.renderLivePage, panicked: panicked, now: pages.now, baseCtx: baseCtx, views: map[viewKey]*view{},
		quickReads: make(chan struct{}, maxQuickReads), slowReads: make(chan struct{}, maxSlowReads),
	}
}

// addViewer adds a viewer: the page is kept up to date until all viewers have called removeViewer. If the page was not
// read yet and no read of it is in progress, addViewer reads it before it returns.
func (h *hub) addViewer(key viewKey) (removeViewer func()) {
	h.mu.Lock()
	v := h.views[key]
	if v == nil {
		v = &view{state: &viewState{replaced: make(chan struct{})}}
		h.views[key] = v
	}
	v.viewers++
	first := v.state.page == nil && !v.isReading
	if first {
		v.beginRead(h.now())
	}
	h.mu.Unlock()
	if first {
		h.readView(key, v)
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if v.viewers--; v.viewers == 0 {
			delete(h.views, key)
		}
	}
}

func (h *hub) hasViews() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.views) > 0
}

// currentState returns the state of a page. The caller must have called addViewer for it.
func (h *hub) currentState(key viewKey) *viewState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.views[key].state
}

// startReads starts reading the open pages that events may have changed, or all if allPagesChanged is true. It does not wait for the reads.
func (h *hub) startReads(events []event, allPagesChanged bool) {
	for key, v := range h.beginDueReads(events, allPagesChanged) {
		h.panicked.Go("reading a page", func() { h.readView(key, v) })
	}
}

// beginDueReads returns the views that must be read now (see startReads), and marks each of them as being read.
func (h *hub) beginDueReads(events []event, allPagesChanged bool) map[viewKey]*view {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, due := h.now(), map[viewKey]*view{}
	for key, v := range h.views {
		v.changed = v.changed || allPagesChanged || v.needsRead(events, now)
		if v.changed && !v.isReading && !now.Before(v.restUntil) {
			v.beginRead(now)
			due[key] = v
		}
	}
	return due
}

// beginRead records that a read of the page begins at the time now.
func (v *view) beginRead(now time.Time) { v.changed, v.isReading, v.readAt = false, true, now }

// needsRead reports whether the page may have changed: by events, or because of the time now.
func (v *view) needsRead(events []event, now time.Time) bool {
	s := v.state
	if s.page == nil || s.err != nil || s.page.watch.everyTick {
		return true
	}
	if every := s.page.watch.every; every > 0 && now.Sub(v.readAt) >= every {
		return true
	}
	return slices.ContainsFunc(events, s.page.watch.matches)
}

// chooseReadLane returns the lane (the quick or the slow group of concurrent reads) in which the view v is read next, and the time limit of
// this read.
func (h *hub) chooseReadLane(v *view) (lane chan struct{}, timeLimit time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v.wasSlow {
		return h.slowReads, slowReadLimit
	}
	return h.quickReads, quickReadLimit
}

// newReadContext returns the context of a read. In the quick lane, the context hides its deadline, because loaders that see a near deadline
// leave parts of the page out. A page that is late in the quick lane is read again in the slow lane.
func (h *hub) newReadContext(timeLimit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(h.baseCtx, timeLimit)
	if timeLimit == quickReadLimit {
		ctx = withoutDeadline{ctx}
	}
	return ctx, cancel
}

// withoutDeadline is a context that ends at its deadline, but whose method Deadline reports no deadline.
type withoutDeadline struct{ context.Context } //nolint:containedctx // it is a context

// Deadline hides the deadline: its second result is false.
func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// readView waits for room in the lane (quick or slow reads) of the view v, and then reads its page, even if the last viewer has left in the
// meantime. If the page is too slow for the quick lane, the next tick starts another read in the slow lane.
func (h *hub) readView(key viewKey, v *view) {
	limiter, timeLimit := h.chooseReadLane(v)
	limiter <- struct{}{}
	defer func() { <-limiter }()
	ctx, cancel := h.newReadContext(timeLimit)
	defer cancel()
	began := h.now()
	var rendered *renderedPage
	err := h.panicked.Report("reading the page "+key.address, rescue.Call(func() (err error) {
		rendered, err = h.render(ctx, key)
		return err
	}))
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	took := now.Sub(began)
	v.isReading, v.restUntil = false, now.Add(restFactor*took)
	if err != nil && ctx.Err() != nil && !v.wasSlow {
		v.wasSlow, v.changed, v.restUntil = true, true, now
		return
	}
	v.wasSlow = took > quickReadLimit
	v.setState(rendered, err)
}

// setErrorOfAllViews records readErr, the reason why no page can be read, in all views.
func (h *hub) setErrorOfAllViews(readErr error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.views {
		v.setState(nil, readErr)
	}
}

// setState replaces the state of a view by rendered and readErr, and wakes the streams of the view. If rendered is nil, the previous page
// stays.
func (v *view) setState(rendered *renderedPage, readErr error) {
	before := v.state
	if rendered == nil {
		rendered = before.page
	}
	v.state = &viewState{page: rendered, err: readErr, replaced: make(chan struct{})}
	close(before.replaced)
}
