package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

type findPages struct{ api client }

func (f *findPages) registerRoutes(target *site) { target.addPage("/find", f.loadHits) }

// hit is one search result, with the path of its page.
type hit struct {
	Kind, ID, Text string
	Path           string
}

// hitGroup are the search results of one kind of match.
type hitGroup struct {
	Title    string
	Hits     []hit
	More     string // path of the list with all results; empty if Hits has all of them
	Searched int    // number of entries that were searched; 0 means all
}

// loadHits returns the page with the hits for the text in the request.
func (f *findPages) loadHits(r *http.Request) (page, error) {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	var parts []hitGroup
	if text != "" {
		found, err := f.api.Search.Find(r.Context(), operators.FindQuery{Text: text})
		if err != nil {
			return page{}, err
		}
		parts = groupHits(found.Distinct())
	}
	return page{title: "Find", template: "find", searchText: text, data: map[string]any{"Text": text, "Parts": parts}}, nil
}

// groupHits returns the groups of search results that a page shows: groups with hits, and groups in
// which only a limited number of entries was searched. Exact hits come first.
func groupHits(found operators.Found) (groups []hitGroup) {
	q := url.QueryEscape(found.Text)
	for _, p := range []struct {
		title string
		operators.FoundPart
		list string
	}{
		{"Exactly", found.Exact, ""},
		{"Pools", found.Pools, "/?name=" + q},
		{"Batches", found.Batches, "/batches?name=" + q},
		{"Devices", found.Devices, "/devices?part=" + q},
		{"Devices with this tag", found.Tagged, "/devices?tag=" + q},
		{"Tasks that failed with this error", found.Failed, "/tasks?error=" + q + "*"},
	} {
		part := hitGroup{Title: p.title, Searched: p.Scanned}
		for _, h := range p.Hits {
			part.Hits = append(part.Hits, newHit(h))
		}
		if p.More || p.Scanned > 0 {
			part.More = p.list
		}
		if len(part.Hits) > 0 || part.Searched > 0 {
			groups = append(groups, part)
		}
	}
	return groups
}

// newHit converts a hit of the API to a hit of the page, which has a path. A batch is shown by its name, if it has one.
func newHit(found operators.Hit) hit {
	list := map[string]string{"pool": "/pools/", "batch": "/batches/", "task": "/tasks/", "device": "/devices/"}[found.Kind]
	one := hit{Kind: found.Kind, ID: found.ID, Text: found.Text, Path: list + url.PathEscape(found.ID)}
	if found.Kind == "batch" && found.Text != "" {
		one.ID, one.Text = found.Text, "number "+found.ID
	}
	return one
}
