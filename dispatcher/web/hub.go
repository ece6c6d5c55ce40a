package web

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

const (
	viewTime  = 5 * time.Second // the longest one page may take to be read again
	viewsRead = 4               // pages that are read at once
)

// watch selects the events after which a page is read again.
type watch struct {
	always bool // something changes without an event
	any    bool // all events
	pool   string
	batch  int64
	task   int64
	device string
}

// concerned says whether the event may have changed the page.
func (w watch) concerned(e store.Event) bool {
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
}

// viewState never changes; a successor replaces it.
type viewState struct {
	sheet *sheet // nil: not read yet
	err   error  // why it is not newer
	next  chan struct{}
}

// hub has the open pages read again, each once however many look at it.
type hub struct {
	render   func(ctx context.Context, key viewKey) (*sheet, error)
	panicked rescue.Told

	mu    sync.Mutex
	views map[viewKey]*view
}

// join has a page read until leave.
func (h *hub) join(ctx context.Context, key viewKey) (leave func()) {
	h.mu.Lock()
	v := h.views[key]
	if v == nil {
		v = &view{state: &viewState{next: make(chan struct{})}}
		h.views[key] = v
	}
	v.viewers++
	first := v.state.sheet == nil
	h.mu.Unlock()
	if first {
		h.read(ctx, key)
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

// tick reads the pages again that the events concern.
func (h *hub) tick(ctx context.Context, events []store.Event, all bool) {
	wait := rescue.Crew{Told: h.panicked}
	room := make(chan struct{}, viewsRead)
	for _, key := range h.due(events, all) {
		room <- struct{}{}
		wait.Go("reading a page", func() {
			defer func() { <-room }()
			h.read(ctx, key)
		})
	}
	wait.Wait()
}

func (h *hub) due(events []store.Event, all bool) []viewKey {
	h.mu.Lock()
	defer h.mu.Unlock()
	var keys []viewKey
	for key, v := range h.views {
		s := v.state
		due := all || s.sheet == nil || s.err != nil || s.sheet.watch.always
		for i := 0; i < len(events) && !due; i++ {
			due = s.sheet.watch.concerned(events[i])
		}
		if due {
			keys = append(keys, key)
		}
	}
	return keys
}

// read renders a page.
func (h *hub) read(ctx context.Context, key viewKey) {
	ctx, cancel := context.WithTimeout(ctx, viewTime)
	defer cancel()
	var made *sheet
	err := h.panicked.Tell("reading the page "+key.address, rescue.Call(func() (err error) {
		made, err = h.render(ctx, key)
		return err
	}))
	h.mu.Lock()
	defer h.mu.Unlock()
	if v := h.views[key]; v != nil {
		v.turn(made, err)
	}
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
