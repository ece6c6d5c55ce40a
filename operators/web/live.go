package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"time"

	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators/api"
)

const (
	liveSign  = 2 * time.Second // interval of empty messages that keep the stream alive while nothing changes
	liveStill = 5 * time.Second // interval at which the session is checked again
	liveWrite = 10 * time.Second
	liveMost  = 1000 // maximum number of open streams of one replica
	liveEach  = 100  // maximum number of open streams of one operator token
)

// message is one update of an open page: the whole page, or the pieces that differ.
type message struct {
	Now    int64         `json:"now"`              // ms since 1970, for relative times
	Moment string        `json:"moment,omitempty"` // snapshot of the ledger that the page shows after this message
	Main   template.HTML `json:"main,omitempty"`
	Title  string        `json:"title,omitempty"`
	Pieces []piece       `json:"pieces,omitempty"`
	Error  string        `json:"error,omitempty"` // why the page is not up to date
	Gone   bool          `json:"gone,omitempty"`  // the session has ended
}

type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
}

// since returns the update from before, the sheet that a page shows now, to s. If before is nil, or has
// another title or other piece ids, the update is the whole page.
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

// streams keeps open pages up to date.
type streams struct {
	site *site
	door *door
	hub  *hub
	open *fair.Shares
	life context.Context //nolint:containedctx // of all streams
	stop context.CancelFunc
}

func newStreams(s *site, d *door, panicked rescue.Told) *streams {
	life, stop := context.WithCancel(context.Background())
	return &streams{site: s, door: d, hub: newHub(life, s, panicked), open: fair.NewShares(liveMost, liveEach), life: life, stop: stop}
}

// serve streams the updates of one page.
func (s *streams) serve(rw http.ResponseWriter, r *http.Request) {
	who, err := s.door.visitor(r)
	if err != nil {
		refuseStream(rw, err)
		return
	}
	address, err := url.Parse(r.URL.Query().Get("page"))
	if err != nil || !s.site.isLive(address) {
		http.Error(rw, "page: no page of the dashboard", http.StatusBadRequest)
		return
	}
	free, ok := s.open.Take(fmt.Sprintf("%s#%d", who.Name, who.Token), who.May("admin"))
	if !ok {
		http.Error(rw, "too many open pages, of this token or of all", http.StatusServiceUnavailable)
		return
	}
	defer free()
	key := viewKey{address: address.RequestURI(), role: who.Role}
	leave := s.hub.join(key) //nolint:contextcheck // others may wait for the same reading
	defer leave()
	rw.Header().Set("Content-Type", "text/event-stream")
	rw.Header().Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	s.follow(r, key, r.URL.Query().Get("version"), newStream(rw))
}

func refuseStream(rw http.ResponseWriter, err error) {
	if errors.Is(err, errSignedOut) {
		http.Error(rw, "sign in first", http.StatusUnauthorized)
		return
	}
	http.Error(rw, "the ledger cannot be reached", http.StatusServiceUnavailable)
}

// follow sends the changes of a page until the client leaves, its session ends or this process stops.
func (s *streams) follow(r *http.Request, key viewKey, version string, send func(message) error) {
	var shown *sheet
	sign, still := time.NewTicker(liveSign), time.NewTicker(liveStill)
	defer sign.Stop()
	defer still.Stop()
	for first := true; ; first = false {
		at := s.hub.state(key)
		var m message
		if at.sheet != nil && at.sheet != shown {
			if !first || at.sheet.version() != version {
				m = at.sheet.since(shown)
			}
			m.Moment = at.sheet.moment
			shown = at.sheet
		}
		m.Now = s.site.now().UnixMilli()
		if at.err != nil {
			m.Error = s.site.outage(r.Context(), at.err)
		}
		if send(m) != nil {
			return
		}
		select {
		case <-at.next:
		case <-sign.C:
		case <-still.C:
			if !s.stillThere(r, key.role, send) {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.life.Done():
			return
		}
	}
}

// stillThere reports whether the session is still valid, with the same role. It notifies the page of a
// session that has ended. If the ledger cannot be read, the session counts as valid.
func (s *streams) stillThere(r *http.Request, role string, send func(message) error) bool {
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" {
		return false
	}
	who, err := s.door.sessions.still(r.Context(), cookie.Value)
	if errors.Is(err, errSignedOut) || err == nil && who.Role != role {
		_ = send(message{Now: s.site.now().UnixMilli(), Gone: true}) // the stream ends whether this succeeds or not
		return false
	}
	return true
}

// newStream returns a function that writes a message to the client at once.
func newStream(rw http.ResponseWriter) func(message) error {
	write := api.Live(rw, liveWrite)
	return func(m message) error {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return write(fmt.Appendf(nil, "data: %s\n\n", text))
	}
}
