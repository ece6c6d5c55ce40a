package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
)

// Way is the request that performs the action of a remedy, or shows the page for it.
type Way struct{ Method, Path string }

// WayTo returns the request for an action. ok is false if no page performs it.
func WayTo(act decision.Act, subject decision.Subject) (Way, bool) {
	for _, way := range remedyWays() {
		if way.act == act && way.subject == subject {
			path, _, _ := strings.Cut(fmt.Sprintf(way.path, "x"), "#")
			return Way{map[bool]string{true: http.MethodPost, false: http.MethodGet}[way.form], path}, true
		}
	}
	return Way{}, false
}

// Routes reports whether there is a page at path, or a handler for its form.
func (w *Web) Routes(method, path string) bool {
	_, pattern := w.site.pages.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
	return pattern != ""
}

// Held returns the points that the charts show for a pool: the time in ms, the number of held slots,
// and the grants and reaps since the previous point.
func (w *Web) Held(pool string) (at []int64, held, grants, reaps []int) {
	for _, p := range w.history.of(pool) {
		at, held, grants, reaps = append(at, p.at), append(held, int(p.held)), append(grants, int(p.grants)), append(reaps, int(p.reaps))
	}
	return at, held, grants, reaps
}
