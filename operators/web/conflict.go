package web

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// maxChangesSearched is the maximum number of changes of all profiles that are read to find the changes of one profile.
const maxChangesSearched = 50

// checkConflict returns an error if somebody else changed a value that the submitted form changes, too. currentTexts has the present texts of
// the inputs. The error names the changes, the operator who made the newest change, and its time. objectNoun (pool, batch or profile) and
// objectID name the changed object. eventKind is the kind of the events that record changes of it.
func (c client) checkConflict(r *http.Request, currentTexts url.Values, eventKind, objectNoun, objectID string, now time.Time) error {
	changes := conflictingChanges(r.PostForm, currentTexts)
	if len(changes) == 0 {
		return nil
	}
	query := url.Values{"kind": {eventKind}, objectNoun: {objectID}, "page_size": {"1"}}
	if objectNoun == "profile" { // events can be filtered by pool and batch, but not by profile: only their detail names it
		query = url.Values{"kind": {eventKind}, "page_size": {strconv.Itoa(maxChangesSearched)}}
	}
	var list operators.EventList
	if err := c.get(r, operators.Path("events"), query, &list); err != nil {
		return err
	}
	who, when := "Somebody", "since you opened the form"
	for _, e := range list.Events {
		if objectNoun != "profile" || strings.HasPrefix(e.Detail, "profile="+objectID+" ") {
			who, when = cmp.Or(e.Actor, who), durationText(max(now.Sub(e.At.Time).Round(time.Second), time.Second))+" ago"
			break
		}
	}
	return &operators.Problem{Status: http.StatusConflict, Detail: fmt.Sprintf(
		"%s %s, %s. Nothing was changed by this form. It still has your input: check it, and send it again to replace that.", who, strings.Join(changes, " and "), when)}
}

// conflictingChanges returns, in words, the inputs that two operators changed to different texts: the text in form and the text in
// currentTexts both differ from the text that the form showed at first.
func conflictingChanges(form, currentTexts url.Values) (changes []string) {
	labels := map[string]string{"longest": "longest lease", "sleep": "longest sleep", "max_wait": "longest wait", "not_after": "not-after time", "metadata_only": "setting for DDI"}
	entered := maps.Clone(form)
	entered.Set("limits", rowsText(enteredRows(form)))
	for _, name := range slices.Sorted(maps.Keys(currentTexts)) {
		now := currentTexts.Get(name)
		if originalText(form, name, now) == now || isUnchanged(entered, name) || entered.Get(name) == now {
			continue
		}
		label := cmp.Or(labels[name], name)
		if now == "" || name == "limits" || strings.Contains(now, "\n") {
			changes = append(changes, "changed the "+label)
		} else {
			changes = append(changes, "set the "+label+" to "+now)
		}
	}
	return changes
}
