package web

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// findPages show what a text may mean.
type findPages struct{ api client }

func (f *findPages) route(to *site) { to.page("/find", f.find) }

// hit is one thing that was found, with its page.
type hit struct {
	Kind, ID, Text string
	Path           string
}

// findings are what was found in one way.
type findings struct {
	Title  string
	Hits   []hit
	More   string // the list with all of them; empty: these are all
	Looked int    // only so many were looked at; 0: all
}

func (f *findPages) find(r *http.Request) (page, error) {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	var parts []findings
	if text != "" {
		found, err := f.api.Search.Find(r.Context(), text)
		if err != nil {
			return page{}, err
		}
		parts = partsOf(found.Distinct())
	}
	return page{title: "Find", template: "find", find: text, data: map[string]any{"Text": text, "Parts": parts}}, nil
}

// partsOf are those with hits or a bound, exact ones first.
func partsOf(found operators.Found) (parts []findings) {
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
		part := findings{Title: p.title, Looked: p.Looked}
		for _, h := range p.Hits {
			part.Hits = append(part.Hits, shown(h))
		}
		if p.More || p.Looked > 0 {
			part.More = p.list
		}
		if len(part.Hits) > 0 || part.Looked > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// shown is what was found as people call it: a batch by its name.
func shown(h operators.Hit) hit {
	list := map[string]string{"pool": "/pools/", "batch": "/batches/", "task": "/tasks/", "device": "/devices/"}[h.Kind]
	one := hit{Kind: h.Kind, ID: h.ID, Text: h.Text, Path: list + url.PathEscape(h.ID)}
	if h.Kind == "batch" && h.Text != "" {
		one.ID, one.Text = h.Text, "number "+h.ID
	}
	return one
}
