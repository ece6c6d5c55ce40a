package web

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
)

// Way is the request that does an action of a remedy, or shows the page that does.
type Way struct{ Method, Path string }

// WayTo is the way of the pages to an action; false: there is none.
func WayTo(act decision.Act, subject decision.Subject) (Way, bool) {
	for _, way := range remedyWays() {
		if way.act == act && way.subject == subject {
			path, _, _ := strings.Cut(fmt.Sprintf(way.path, "x"), "#")
			return Way{map[bool]string{true: http.MethodPost, false: http.MethodGet}[way.form], path}, true
		}
	}
	return Way{}, false
}

// Routes says whether there is a page, or something that takes its form.
func (w *Web) Routes(method, path string) bool {
	_, pattern := w.site.pages.Handler(&http.Request{Method: method, URL: &url.URL{Path: path}})
	return pattern != ""
}

// Held is how many slots of a pool the charts show, by time in ms, and what was
// granted and taken back since the point before.
func (w *Web) Held(pool string) (at []int64, held, grants, reaps []int) {
	for _, p := range w.history.of(pool) {
		at, held, grants, reaps = append(at, p.at), append(held, int(p.held)), append(grants, int(p.grants)), append(reaps, int(p.reaps))
	}
	return at, held, grants, reaps
}
