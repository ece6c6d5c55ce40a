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
	keepAliveEvery     = 2 * time.Second // interval of empty messages that keep the stream alive while nothing changes
	recheckEvery       = 5 * time.Second // interval at which a stream checks its session again
	streamWriteTimeout = 10 * time.Second
	maxStreams         = 1000 // maximum number of open streams of one replica
	maxStreamsPerToken = 100  // maximum number of open streams of one operator token
)

// pageUpdate is a message of the stream of an open page: the whole page, or only the pieces that changed.
type pageUpdate struct {
	Now      int64         `json:"now"`              // ms since 1970, for relative times
	Snapshot string        `json:"moment,omitempty"` // snapshot of the ledger that the page shows after this message
	Main     template.HTML `json:"main,omitempty"`
	Title    string        `json:"title,omitempty"`
	Pieces   []piece       `json:"pieces,omitempty"`
	Error    string        `json:"error,omitempty"` // the reason why the page is not up to date
	Gone     bool          `json:"gone,omitempty"`  // the session has ended
}

// piece is a part of a page that changed, with the id of its outermost element.
type piece struct {
	ID   string        `json:"id"`
	HTML template.HTML `json:"html"`
}

// changesSince returns the update that changes the browser's page from shown (the version that it shows) to s. If shown is nil, or has
// another title or other piece ids, the update is the whole page.
func (s *renderedPage) changesSince(shown *renderedPage) pageUpdate {
	if shown == nil || len(shown.order) != len(s.order) || shown.title != s.title {
		return pageUpdate{Main: s.main, Title: s.title}
	}
	var m pageUpdate
	for i, id := range s.order {
		if shown.order[i] != id {
			return pageUpdate{Main: s.main, Title: s.title}
		}
		if shown.pieces[id] != s.pieces[id] {
			m.Pieces = append(m.Pieces, piece{id, s.pieces[id]})
		}
	}
	return m
}

// streams keeps open pages up to date.
type streams struct {
	site    *site
	auth    *authenticator
	hub     *hub
	shares  *fair.Shares
	baseCtx context.Context //nolint:containedctx // the context of all streams
	stop    context.CancelFunc
}

// newStreams returns the streams for the live pages of the site pages. Only visitors that auth has signed in get a stream.
func newStreams(pages *site, auth *authenticator, panicked rescue.PanicHandler) *streams {
	baseCtx, stop := context.WithCancel(context.Background())
	return &streams{site: pages, auth: auth, hub: newHub(baseCtx, pages, panicked), shares: fair.NewShares(maxStreams, maxStreamsPerToken), baseCtx: baseCtx, stop: stop}
}

// serveStream streams the updates of the page that the request names.
func (s *streams) serveStream(rw http.ResponseWriter, r *http.Request) {
	who, err := s.auth.readVisitor(r)
	if err != nil {
		refuseStream(rw, err)
		return
	}
	address, err := url.Parse(r.URL.Query().Get("page"))
	if err != nil || !s.site.isLive(address) {
		http.Error(rw, "page: not a page of the dashboard", http.StatusBadRequest)
		return
	}
	free, ok := s.shares.TryStart(fmt.Sprintf("%s#%d", who.Name, who.Token), who.May("admin"))
	if !ok {
		http.Error(rw, "too many open pages for this token, or in total", http.StatusServiceUnavailable)
		return
	}
	defer free()
	key := viewKey{address: address.RequestURI(), role: who.Role}
	leave := s.hub.addViewer(key) //nolint:contextcheck // other viewers may wait for the same read
	defer leave()
	rw.Header().Set("Content-Type", "text/event-stream")
	rw.Header().Set("X-Accel-Buffering", "no") // proxies must not buffer the stream
	s.sendUpdates(r, key, r.URL.Query().Get("version"), newSender(rw))
}

func refuseStream(rw http.ResponseWriter, err error) {
	if errors.Is(err, errSignedOut) {
		http.Error(rw, "sign in first", http.StatusUnauthorized)
		return
	}
	http.Error(rw, "the ledger cannot be reached", http.StatusServiceUnavailable)
}

// sendUpdates calls send with each change of the page with this key until the client leaves, its session ends or this process stops.
// shownVersion is the version that the browser shows. If the page has another version now, the browser first gets the whole page.
func (s *streams) sendUpdates(r *http.Request, key viewKey, shownVersion string, send func(pageUpdate) error) {
	var shown *renderedPage
	keepAlive, recheck := time.NewTicker(keepAliveEvery), time.NewTicker(recheckEvery)
	defer keepAlive.Stop()
	defer recheck.Stop()
	for first := true; ; first = false {
		state := s.hub.currentState(key)
		var m pageUpdate
		if state.page != nil && state.page != shown {
			if !first || state.page.version() != shownVersion {
				m = state.page.changesSince(shown)
			}
			m.Snapshot = state.page.snapshot
			shown = state.page
		}
		m.Now = s.site.now().UnixMilli()
		if state.err != nil {
			m.Error = s.site.outageText(r.Context(), state.err)
		}
		if send(m) != nil {
			return
		}
		select {
		case <-state.replaced:
		case <-keepAlive.C:
		case <-recheck.C:
			if !s.isSessionValid(r, key.role, send) {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.baseCtx.Done():
			return
		}
	}
}

// isSessionValid reports whether the session of the request is still valid, with the same role. If the session has ended or its role has
// changed, isSessionValid notifies the page with send. If the ledger cannot be read, the session counts as valid.
func (s *streams) isSessionValid(r *http.Request, role string, send func(pageUpdate) error) bool {
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" {
		return false
	}
	who, err := s.auth.sessions.recentlyCheckedOperator(r.Context(), cookie.Value)
	if errors.Is(err, errSignedOut) || err == nil && who.Role != role {
		_ = send(pageUpdate{Now: s.site.now().UnixMilli(), Gone: true}) // the stream ends whether this succeeds or not
		return false
	}
	return true
}

// newSender returns a function that writes a message to the client at once.
func newSender(rw http.ResponseWriter) (send func(pageUpdate) error) {
	write := api.NewStreamWriter(rw, streamWriteTimeout)
	return func(m pageUpdate) error {
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		return write(fmt.Appendf(nil, "data: %s\n\n", text))
	}
}
