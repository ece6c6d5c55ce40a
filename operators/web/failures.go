package web

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// failurePages show how many attempts of a pool or a batch failed, by tags and attributes of their devices.
type failurePages struct {
	*pageSender

	api client
}

func (f *failurePages) registerRoutes(target *site) {
	target.addPage("/pools/{id}/failures", f.newFailurePageLoader("pools"))
	target.addPage("/batches/{id}/failures", f.newFailurePageLoader("batches"))
}

// choiceLink is a link that changes what a page shows.
type choiceLink struct {
	Name, Query string
	Current     bool
}

// newFailurePageLoader returns the loader of the page with the failures of a pool or a batch (poolsOrBatches is "pools" or "batches").
func (f *failurePages) newFailurePageLoader(poolsOrBatches string) pageLoader {
	return func(r *http.Request) (page, error) {
		id, span := r.PathValue("id"), chosenRange(r)
		query := operators.FailureQuery{By: splitCommas(r.URL.Query().Get("by")), Since: f.now().Add(-span.length)}
		var found operators.Failures
		if err := f.api.get(r, operators.Path(poolsOrBatches, id, "failures"), query.Values(), &found); err != nil {
			return page{}, err
		}
		ranges := rangeChoices(span, func(name string) string { return failuresQuery(found.By, name) })
		return page{title: "Failures in " + map[string]string{"batches": "batch "}[poolsOrBatches] + id, section: poolsOrBatches, template: "failures", data: map[string]any{
			"Failures": found, "Kind": poolsOrBatches, "ID": id, "Ranges": ranges, "Keys": newKeyChoices(found, span.name),
			"Filter": map[string]string{"pools": "pool=", "batches": "batch="}[poolsOrBatches] + url.QueryEscape(id),
		}}, nil
	}
}

// newKeyChoices returns a link for each key (a tag or an attribute) of found. The link of a key adds the key to the grouping, or removes
// the key if the page is grouped by it. A third key replaces the second one.
func newKeyChoices(found operators.Failures, rangeName string) []choiceLink {
	offered := slices.Clone(found.By)
	for _, key := range found.Keys {
		if !slices.Contains(offered, key) && !strings.Contains(key, ",") {
			offered = append(offered, key)
		}
	}
	choices := make([]choiceLink, len(offered))
	for i, key := range offered {
		by := slices.DeleteFunc(slices.Clone(found.By), func(other string) bool { return other == key })
		isChosen := len(by) < len(found.By)
		if !isChosen {
			by = append(by[:min(len(by), 1)], key)
		}
		choices[i] = choiceLink{key, failuresQuery(by, rangeName), isChosen}
	}
	return choices
}

// failuresQuery returns the query of the page that groups the attempts of the range rangeName by keys.
func failuresQuery(keys []string, rangeName string) string {
	return operators.Query("by", strings.Join(keys, ","), "range", rangeName).Encode()
}

// splitCommas returns the parts of text between commas. It returns nil if text is empty.
func splitCommas(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
