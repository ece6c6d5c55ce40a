package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"path"
	"sync/atomic"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/api"
	"github.com/fleetslots/dispatcher/internal/fair"
)

const (
	liveSign  = 5 * time.Second // of life, when there is no news
	liveWrite = 10 * time.Second
	liveMost  = 1000 // streams of one replica at once
	liveEach  = 100  // of one operator token
)

// Tick reads what happened since the last one, on all replicas, and has the
// open pages follow. It is to be called about once a second.
func (w *Web) Tick(ctx context.Context) error {
	events, all, err := w.news.read(ctx)
	if err != nil {
		w.hub.fail(err)
		return fmt.Errorf("reading what happened: %w", err)
	}
	w.history.count(events)
	if now := w.options.Now(); w.history.due(now) {
		uses, err := w.options.Ledger.PoolUses(ctx)
		if err != nil {
			return fmt.Errorf("reading how full the pools are: %w", err)
		}
		tallies, err := w.options.Ledger.ReplicaTallies(ctx)
		if err != nil {
			return fmt.Errorf("reading what the replicas counted: %w", err)
		}
		if err := w.tallied.read(tallies, w.history); err != nil {
			return err
		}
		w.history.add(now, uses)
	}
	w.hub.tick(ctx, events, all)
	return nil
}

// message is one update of an open page: all of it, or the pieces that differ.
type message struct {
	Now    int64         `json:"now"`              // ms since 1970, for relative times
	Moment string        `json:"moment,omitempty"` // of the ledger, that the page shows with this message
	Main   template.HTML `json:"main,omitempty"`
	Title  string        `json:"title,omitempty"`
	Pieces []piece       `json:"pieces,omitempty"`
	Error  string        `json:"error,omitempty"` // why the page is not up to date
	Gone   bool          `json:"gone,omitempty"`  // nobody is signed in any more
}

type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
}

// since is the update for a page that shows before.
func (s *sheet) since(before *sheet) message {
	if before == nil || len(before.order) != len(s.order) || before.title != s.title {
		return message{Main: s.main, Title: s.title}
	}
	var m message
	for i, id := range s.order {
		if before.order[i] != id {
			return message{Main: s.main, Title: s.title}
		}
		if before.pieces[id] != s.pieces[id] {
			m.Pieces = append(m.Pieces, piece{id, s.pieces[id]})
		}
	}
	return m
}

// streams counts the open streams.
type streams struct {
	open     *fair.Shares
	stopping atomic.Bool
	stop     chan struct{}
}

// Stop ends the streams, so that a server that finishes what is in flight does
// not wait for them.
func (w *Web) Stop() {
	if !w.streams.stopping.Swap(true) {
		close(w.streams.stop)
	}
}

// live streams updates of one page.
func (w *Web) live(rw http.ResponseWriter, r *http.Request) {
	who, err := w.visitor(r)
	if err != nil {
		w.refuseStream(rw, err)
		return
	}
	address, err := url.Parse(r.URL.Query().Get("page"))
	if err != nil || !w.isLive(address) {
		http.Error(rw, "page: no page of the dashboard", http.StatusBadRequest)
		return
	}
	free, ok := w.streams.open.Take(fmt.Sprintf("%s#%d", who.Name, who.Token), who.May("admin"))
	if !ok {
		http.Error(rw, "too many open pages, of this token or of all", http.StatusServiceUnavailable)
		return
	}
	defer free()
	key := viewKey{address: address.RequestURI(), role: who.Role}
	leave := w.hub.join(r.Context(), key)
	defer leave()
	rw.Header().Set("Content-Type", "text/event-stream")
	rw.Header().Set("X-Accel-Buffering", "no") // proxies must not collect it
	w.follow(r, key, r.URL.Query().Get("version"), newStream(rw))
}

func (w *Web) refuseStream(rw http.ResponseWriter, err error) {
	if errors.Is(err, errSignedOut) {
		http.Error(rw, "sign in first", http.StatusUnauthorized)
		return
	}
	http.Error(rw, "the ledger cannot be reached", http.StatusServiceUnavailable)
}

// follow sends what changes until the client leaves, its session ends or this
// process does.
func (w *Web) follow(r *http.Request, key viewKey, version string, send func(message) error) {
	var shown *sheet
	sign := time.NewTicker(liveSign)
	defer sign.Stop()
	for first := true; ; first = false {
		s := w.hub.state(key)
		m := message{Now: w.options.Now().UnixMilli()}
		if s.sheet != nil && s.sheet != shown {
			if !first || s.sheet.version() != version {
				m = s.sheet.since(shown)
				m.Now = w.options.Now().UnixMilli()
			}
			m.Moment = s.sheet.moment
			shown = s.sheet
		}
		if s.err != nil {
			m.Error = plainError(s.err)
		}
		if send(m) != nil {
			return
		}
		select {
		case <-s.next:
		case <-sign.C:
			if !w.stillThere(r, key.role, send) {
				return
			}
		case <-r.Context().Done():
			return
		case <-w.streams.stop:
			return
		}
	}
}

// stillThere says whether the session goes on, with the same role.
func (w *Web) stillThere(r *http.Request, role string, send func(message) error) bool {
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" {
		return false
	}
	who, err := w.sessions.still(r.Context(), cookie.Value)
	if errors.Is(err, errSignedOut) || err == nil && who.Role != role {
		_ = send(message{Now: w.options.Now().UnixMilli(), Gone: true}) // it ends either way
		return false
	}
	return true
}

// newStream writes messages to a client at once.
func newStream(rw http.ResponseWriter) func(message) error {
	connection := http.NewResponseController(rw)
	_ = connection.SetReadDeadline(time.Time{}) // the server's is for requests that end
	return func(m message) error {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		_ = connection.SetWriteDeadline(time.Now().Add(liveWrite))
		if _, err := fmt.Fprintf(rw, "data: %s\n\n", text); err != nil {
			return err
		}
		return connection.Flush()
	}
}

// capture takes what a page renders for the hub.
type capture struct {
	sheet *sheet
	err   error
}

type captureKey struct{}

// isLive says whether the address is that of a page which follows what happens.
func (w *Web) isLive(address *url.URL) bool {
	if address.Scheme != "" || address.Host != "" || path.Clean(address.Path) != address.Path {
		return false
	}
	_, pattern := w.livePages.Handler(&http.Request{Method: http.MethodGet, URL: address})
	return pattern != ""
}

// render reads a page for all who have it open with that role.
func (w *Web) render(ctx context.Context, key viewKey) (*sheet, error) {
	taken := &capture{}
	ctx = context.WithValue(ctx, captureKey{}, taken)
	r, err := http.NewRequestWithContext(withVisitor(ctx, api.Operator{Name: "dashboard", Role: key.role}), http.MethodGet, key.address, nil)
	if err != nil {
		return nil, err
	}
	w.livePages.ServeHTTP(&recorded{header: http.Header{}}, r)
	return taken.sheet, taken.err
}
