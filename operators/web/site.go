package web

import (
	"cmp"
	"context"
	"fmt"
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
	*pageSender

	api         API // writes CSV files
	ledger      Ledger
	pages       *http.ServeMux
	livePages   *http.ServeMux  // the subset of pages that the hub may read
	timeLimited map[string]bool // the patterns of the pages that WithTimeLimit serves
}

// pageLoader reads the content of a page: it answers a request with the data for the page's template.
type pageLoader func(r *http.Request) (page, error)

// addPage registers a page that serves the content of a loader to a browser. A page that is not live is not
// updated while it is open, and its loader may read several snapshots of the ledger.
func (s *site) addPage(pattern string, loadPage pageLoader) {
	s.timeLimited["GET "+pattern] = true
	s.pages.HandleFunc("GET "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		p, err := loadPage(r)
		s.sendPage(rw, r, http.StatusOK, p, err)
	})
}

// addLivePage registers a page that is updated while it is open. The hub reads only live pages. The loader reads one snapshot of the ledger,
// and must not use the visitor's name, because the hub reads it as the visitor "dashboard" with the same role.
func (s *site) addLivePage(pattern string, loadPage pageLoader) {
	s.addLivePageWithoutSnapshot(pattern, s.withSnapshot(loadPage))
}

// redisTimeShare is the part of a page's time limit for reading the data that comes from Redis. This
// data is read before the snapshot of the ledger.
const redisTimeShare = 0.7

// addLivePageWithRedis registers in target a live page that needs data from Redis. readRedis reads this data before the snapshot, because
// a snapshot keeps a database connection, and Redis may be slow to answer. load then reads the page with this data.
func addLivePageWithRedis[T any](target *site, pattern string, readRedis func(r *http.Request) (T, error), load func(r *http.Request, redisData T) (page, error)) {
	target.addLivePageWithoutSnapshot(pattern, func(r *http.Request) (page, error) {
		within, cancel := deadline.Share(r.Context(), redisTimeShare)
		defer cancel()
		redisData, err := readRedis(r.WithContext(within))
		if err != nil {
			return page{}, err
		}
		return target.withSnapshot(func(r *http.Request) (page, error) { return load(r, redisData) })(r)
	})
}

// withSnapshot returns a loader that reads one snapshot of the ledger, so that the numbers of a page agree
// with each other. It records in page.snapshot which snapshot that is.
func (s *site) withSnapshot(loadPage pageLoader) pageLoader {
	return func(r *http.Request) (p page, err error) {
		err = s.ledger.InOneSnapshot(r.Context(), func(ctx context.Context, at ledgerSnapshot) error {
			p, err = loadPage(r.WithContext(ctx))
			p.snapshot = at.String()
			return err
		})
		return p, err
	}
}

// addLivePageWithoutSnapshot registers loadPage as a live page. It does not open a snapshot of the ledger for loadPage.
func (s *site) addLivePageWithoutSnapshot(pattern string, loadPage pageLoader) {
	s.addPage(pattern, loadPage)
	s.livePages.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
		captured, _ := rw.(*pageCapture)
		p, err := loadPage(r)
		if err == nil {
			captured.page, err = s.render(p)
		}
		captured.err = err
	})
}

// csvExport is a list of the API that a visitor downloads as a CSV file.
type csvExport struct {
	path  string
	query url.Values
	name  string // name of the file, without its extension
}

// addCSVDownload registers a download of the export that selectExport returns. The API writes the CSV, which is sent while it is read.
func (s *site) addCSVDownload(pattern string, selectExport func(r *http.Request) (csvExport, error)) {
	s.pages.HandleFunc("GET "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		wanted, err := selectExport(r)
		if err != nil {
			s.sendError(rw, r, err)
			return
		}
		in, err := http.NewRequestWithContext(r.Context(), http.MethodGet, wanted.path+"?"+wanted.query.Encode(), nil)
		if err != nil {
			s.sendError(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: err.Error()})
			return
		}
		in.Header.Set("Accept", operators.TypeCSV)
		rw.Header().Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s.csv"`, wanted.name))
		s.api.ServeAs(visitorOf(r.Context()), rw, in)
	})
}

// pageCapture receives the page that a live page's handler renders for the hub.
type pageCapture struct {
	*api.BufferedResponse

	page *renderedPage
	err  error
}

// isLive reports whether the address is the address of a live page.
func (s *site) isLive(address *url.URL) bool {
	if address.Scheme != "" || address.Host != "" || path.Clean(address.Path) != address.Path {
		return false
	}
	_, pattern := s.livePages.Handler(&http.Request{Method: http.MethodGet, URL: address})
	return pattern != ""
}

// renderLivePage renders a live page for all viewers that have it open with the same role.
func (s *site) renderLivePage(ctx context.Context, key viewKey) (*renderedPage, error) {
	r, err := http.NewRequestWithContext(withVisitor(ctx, api.Operator{Name: "dashboard", Role: key.role}), http.MethodGet, key.address, nil)
	if err != nil {
		return nil, err
	}
	captured := &pageCapture{BufferedResponse: api.NewBufferedResponse(http.Header{})}
	s.livePages.ServeHTTP(captured, r)
	return captured.page, captured.err
}

// formAction does the work of a submitted form. It returns next, the path of the page that the browser shows afterwards, and messageKey,
// the key of the message on that page (see doneMessages).
type formAction func(r *http.Request) (next, messageKey string, err error)

// addForm registers a form at pattern. A visitor needs requiredRole to submit the form, and action does its work. The API checks the visitor
// again, so requiredRole must be the role of the called operation in package operators. If the form is refused, a page shows the
// reason.
func (s *site) addForm(pattern, requiredRole string, action formAction) {
	s.pages.HandleFunc("POST "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		if err := s.readForm(r, requiredRole); err != nil {
			s.sendError(rw, r, err)
			return
		}
		back, err := s.readReturnPath(r)
		if err != nil {
			s.sendError(rw, r, err)
			return
		}
		next, messageKey, err := action(r)
		if err != nil {
			s.refuseForm(rw, r, err)
			return
		}
		next = cmp.Or(back, next)
		mark := "?"
		if strings.Contains(next, "?") {
			mark = "&"
		}
		http.Redirect(rw, r, s.prefixedPath(next)+mark+"done="+url.QueryEscape(messageKey), http.StatusSeeOther)
	})
}

// readForm parses the submitted form in the request. It refuses a visitor who lacks requiredRole.
func (s *site) readForm(r *http.Request, requiredRole string) error {
	if !s.mayOfferActions(r, requiredRole) {
		return s.refuseVisitor(r, requiredRole)
	}
	if err := r.ParseForm(); err != nil {
		return &operators.Problem{Status: http.StatusBadRequest, Detail: "The form could not be read: " + err.Error()}
	}
	return nil
}

// tokenSecret is the data of the template "secret", which shows a new token once. The answer to the submitted form is this page, because no
// address may contain a token.
type tokenSecret struct {
	Title, Text string
	Note        string // what happens to older tokens
	Back        string // path of the next page
}

// addSecretForm registers a form that creates a token. A visitor needs requiredRole to submit the form, and create does its work.
func (s *site) addSecretForm(pattern, requiredRole, navigationSection string, create func(r *http.Request) (tokenSecret, error)) {
	s.pages.HandleFunc("POST "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		if err := s.readForm(r, requiredRole); err != nil {
			s.sendError(rw, r, err)
			return
		}
		made, err := create(r)
		if err != nil {
			s.refuseForm(rw, r, err)
			return
		}
		s.sendPage(rw, r, http.StatusOK, page{title: made.Title, section: navigationSection, template: "secret", data: made}, nil)
	})
}
