package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
)

// RemedyRequest is the request that carries out the action of a remedy, or that shows the page for this action.
type RemedyRequest struct{ Method, Path string }

// FindRemedyRequest returns the request for an action on the subject. ok is false if no page can carry out the
// action.
func FindRemedyRequest(act decision.Act, subject decision.Subject) (RemedyRequest, bool) {
	for _, way := range listRemedyRoutes() {
		if way.act == act && way.subject == subject {
			path, _, _ := strings.Cut(fmt.Sprintf(way.path, "x"), "#")
			return RemedyRequest{map[bool]string{true: http.MethodPost, false: http.MethodGet}[way.isForm], path}, true
		}
	}
	return RemedyRequest{}, false
}

// HasRoute reports whether the dashboard has a page at this path, or a handler for a form sent to it.
func (w *Web) HasRoute(method, path string) bool {
	_, pattern := w.site.pages.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
	return pattern != ""
}

// RecentGrants returns the number of grants of a pool in the last minute, as pages show it.
func (w *Web) RecentGrants(pool string) int64 { return w.history.recentCounts(pool).Grants }
