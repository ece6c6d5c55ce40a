package web

import (
	"net/http"

	"github.com/fleetslots/dispatcher/operators"
)

// setUsesShown is the maximum number of subjects on the page of a limit set.
const setUsesShown = 30

// limitSetPages show limit sets, and how much was taken from them.
type limitSetPages struct {
	*pageSender

	api client
}

func (l *limitSetPages) registerRoutes(target *site) {
	target.addPage("/limits", l.loadList)
	target.addPage("/limits/{id}", l.loadPage)
}

func (l *limitSetPages) loadList(r *http.Request) (page, error) {
	pager := newPager(r, nil)
	var list operators.LimitSetList
	err := l.api.get(r, operators.Path("limits"), pager.query(devicesShown), &list)
	return page{title: "Limit sets", section: "limits", template: "limit-sets", data: map[string]any{
		"Sets": list.Limits, "Next": pager.nextAddress(list.NextPageToken), "First": pager.isFirst(),
	}}, err
}

func (l *limitSetPages) loadPage(r *http.Request) (page, error) {
	name := r.PathValue("id")
	set, err := l.api.Limits.Get(r.Context(), name)
	if err != nil {
		return page{}, err
	}
	used, err := l.readUsage(r, set)
	return page{title: "Limit set " + name, section: "limits", template: "limit-set", data: map[string]any{"Set": set, "Usage": used}}, err
}

// readUsage returns how much of the policies of a limit set is used.
func (l *limitSetPages) readUsage(r *http.Request, set operators.LimitSet) (policyUsage, error) {
	u := policyUsage{Owner: set.Name, Limited: len(set.Limits) > 0}
	if !u.Limited {
		return u, nil
	}
	highest, err := l.api.Limits.HighestUse(r.Context(), set.Name, setUsesShown)
	u.Uses = newPolicyUses(highest, l.now())
	return u.tolerateUnavailable(err)
}
