package web

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
)

// site holds the pages that need a signed-in visitor.
type site struct {
	*frame

	ledger    pageData
	pages     *http.ServeMux
	livePages *http.ServeMux  // the subset of pages that the hub may read
	timed     map[string]bool // the patterns of the pages that InTime serves
}

// loader reads the content of a page for a request.
type loader func(r *http.Request) (page, error)

// page registers a page that serves the content of a loader to a browser.
func (s *site) page(pattern string, load loader) {
	s.timed["GET "+pattern] = true
	s.pages.HandleFunc("GET "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		p, err := load(r)
		s.answer(rw, r, http.StatusOK, p, err)
	})
}

// live registers a page that is updated while it is open. The hub reads only live pages. The loader
// reads one snapshot of the ledger.
func (s *site) live(pattern string, load loader) { s.follow(pattern, s.snapshot(load)) }

// askedShare is the part of a page's time limit for the reads that need Redis. They come before the
// snapshot of the page.
const askedShare = 0.7

// liveAsked registers a live page that needs data from Redis. ask reads this data before the snapshot,
// because a snapshot keeps a database connection, and Redis may be slow to answer.
func liveAsked[T any](s *site, pattern string, ask func(r *http.Request) (T, error), load func(r *http.Request, asked T) (page, error)) {
	s.follow(pattern, func(r *http.Request) (page, error) {
		within, cancel := deadline.Share(r.Context(), askedShare)
		defer cancel()
		asked, err := ask(r.WithContext(within))
		if err != nil {
			return page{}, err
		}
		return s.snapshot(func(r *http.Request) (page, error) { return load(r, asked) })(r)
	})
}

// liveChecked registers a live page that shows the state of the dependencies.
func (s *site) liveChecked(pattern string, system System, load func(r *http.Request, checks []dependency) (page, error)) {
	liveAsked(s, pattern, func(r *http.Request) ([]dependency, error) { return system.dependencies(r.Context()), nil }, load)
}

// snapshot returns a loader that reads one snapshot of the ledger, so that the numbers of a page agree
// with each other. It records in page.moment which snapshot that is.
func (s *site) snapshot(load loader) loader {
	return func(r *http.Request) (p page, err error) {
		err = s.ledger.InOneSnapshot(r.Context(), func(ctx context.Context, at moment) error {
			p, err = load(r.WithContext(ctx))
			p.moment = at.String()
			return err
		})
		return p, err
	}
}

func (s *site) follow(pattern string, load loader) {
	s.page(pattern, load)
	s.livePages.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
		taken, _ := rw.(*capture)
		p, err := load(r)
		if err == nil {
			taken.sheet, err = s.render(p)
		}
		taken.err = err
	})
}

// capture receives the sheet that a live page renders for the hub.
type capture struct {
	recorded

	sheet *sheet
	err   error
}

// isLive reports whether the address is the address of a live page.
func (s *site) isLive(address *url.URL) bool {
	if address.Scheme != "" || address.Host != "" || path.Clean(address.Path) != address.Path {
		return false
	}
	_, pattern := s.livePages.Handler(&http.Request{Method: http.MethodGet, URL: address})
	return pattern != ""
}

// read renders a live page for all viewers that have it open with the same role.
func (s *site) read(ctx context.Context, key viewKey) (*sheet, error) {
	r, err := http.NewRequestWithContext(withVisitor(ctx, api.Operator{Name: "dashboard", Role: key.role}), http.MethodGet, key.address, nil)
	if err != nil {
		return nil, err
	}
	taken := &capture{recorded: recorded{header: http.Header{}}}
	s.livePages.ServeHTTP(taken, r)
	return taken.sheet, taken.err
}

// change does the work of a form, and returns the next page and the key of the message that this page
// shows.
type change func(r *http.Request) (next, said string, err error)

// act registers a form that needs a role. If the form is refused, the answer is a page with the reason.
func (s *site) act(pattern, role string, do change) {
	s.pages.HandleFunc("POST "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		if !s.may(r, role) {
			s.fail(rw, r, s.forbidden(r, role))
			return
		}
		if err := r.ParseForm(); err != nil {
			s.fail(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: "The form could not be read: " + err.Error()})
			return
		}
		back, err := s.backOf(r)
		if err != nil {
			s.fail(rw, r, err)
			return
		}
		next, said, err := do(r)
		if err != nil {
			s.fail(rw, r, err)
			return
		}
		next = cmp.Or(back, next)
		mark := "?"
		if strings.Contains(next, "?") {
			mark = "&"
		}
		http.Redirect(rw, r, s.url(next)+mark+"done="+url.QueryEscape(said), http.StatusSeeOther)
	})
}
