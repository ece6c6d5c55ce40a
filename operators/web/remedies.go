package web

import (
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

// remedyRoute describes how a page of the dashboard performs an action that the API names in a remedy. The texts of the
// remedies come with the API. Package dispatcher/decision writes them (causes.go, ended.go and, for a group of tasks,
// cause_group.go).
type remedyRoute struct {
	act     decision.Act
	subject decision.Subject
	label   string // text of the button; %s is the id
	path    string // path of the form or page; %s is the id
	isForm  bool   // true: a POST to path performs the action at once; false: path is a page to fill in or to confirm
	role    string // role that the visitor needs
}

// listRemedyRoutes returns one route for each action that a page can perform.
func listRemedyRoutes() []remedyRoute {
	return []remedyRoute{
		{decision.ActUnblock, decision.SubjectDevice, "Unblock %s", "/devices/%s/unblock", true, "operator"},
		{decision.ActNewToken, decision.SubjectDevice, "New token for %s…", "/devices/%s/token", false, "operator"},
		{decision.ActResume, decision.SubjectPool, "Resume %s", "/pools/%s/resume", true, "admin"},
		{decision.ActResume, decision.SubjectBatch, "Resume batch %s", "/batches/%s/resume", true, "operator"},
		{decision.ActRaiseCallers, decision.SubjectPool, "Raise the maximum for callers of %s…", "/pools/%s/edit#callers", false, "admin"},
		{decision.ActRaiseCapacity, decision.SubjectPool, "Raise the capacity of %s…", "/pools/%s/edit#capacity", false, "admin"},
		{decision.ActEditWindows, decision.SubjectPool, "Edit the windows of %s…", "/pools/%s/edit#windows", false, "admin"},
		{decision.ActEditWindows, decision.SubjectBatch, "Edit the windows of batch %s…", "/batches/%s/edit#windows", false, "operator"},
		{decision.ActEditLimits, decision.SubjectPool, "Edit the limits of %s…", "/pools/%s/edit#limits", false, "admin"},
		{decision.ActEditLimits, decision.SubjectBatch, "Edit the limits of batch %s…", "/batches/%s/edit#limits", false, "operator"},
		{decision.ActEditLimits, decision.SubjectProfile, "Edit the limits of profile %s…", "/profiles/%s#limits", false, "admin"},
		{decision.ActEditEnd, decision.SubjectBatch, "Edit the not-after time of batch %s…", "/batches/%s/edit#not_after", false, "operator"},
		{decision.ActEditMaxWait, decision.SubjectBatch, "Edit the longest wait of batch %s…", "/batches/%s/edit#max_wait", false, "operator"},
		{decision.ActCancel, decision.SubjectTask, "Cancel task %s…", "/tasks/%s/cancel", false, "operator"},
		{decision.ActRetry, decision.SubjectTask, "Try task %s again", "/tasks/%s/retry", true, "operator"},
	}
}

// remedyRenderer adds buttons to the texts of remedies on a page. A remedy is advice how to remove the reason why a task waits.
type remedyRenderer struct {
	may           func(role string) bool
	returnAddress string // address of the page
}

// remedyPart is a part of the text of a remedy, followed by a command and its button.
type remedyPart struct {
	Text, Command string
	Button        *remedyButton // nil if the visitor lacks the role, or no page performs the action
}

// remedyButton performs an action of a remedy, and then shows the page with the remedy again.
type remedyButton struct {
	Label, Path string
	Back        string // page to return to, for a form; empty for a link, whose Path contains the page
}

// newRemedies returns the remedyRenderer for the page and the visitor of the request.
func (f *pageSender) newRemedies(r *http.Request) remedyRenderer {
	return remedyRenderer{may: func(role string) bool { return f.mayOfferActions(r, role) }, returnAddress: pageAddress(r)}
}

// Split splits the text of a remedy so that a button follows each command in it. Commands that the text
// does not contain come after the text.
func (m remedyRenderer) Split(text string, actions []operators.Action) []remedyPart {
	var bits, others []remedyPart
	for _, a := range actions {
		bit := remedyPart{Command: a.Command, Button: m.actionButton(a)}
		if before, after, found := strings.Cut(text, a.Command); found {
			bit.Text, text = before, after
			bits = append(bits, bit)
			continue
		}
		others = append(others, bit)
	}
	return append(append(bits, remedyPart{Text: text}), others...)
}

// actionButton returns the button for an action, or nil if the visitor lacks the role, or no page performs the action.
func (m remedyRenderer) actionButton(action operators.Action) *remedyButton {
	for _, route := range listRemedyRoutes() {
		if string(route.act) != action.Action || string(route.subject) != action.Subject || !m.may(route.role) {
			continue
		}
		b := &remedyButton{Label: fmt.Sprintf(route.label, action.ID), Path: fmt.Sprintf(route.path, url.PathEscape(action.ID))}
		if route.isForm {
			b.Back = m.returnAddress
			return b
		}
		page, focus, _ := strings.Cut(b.Path, "#")
		b.Path = page + "?back=" + url.QueryEscape(m.returnAddress)
		if focus != "" {
			b.Path += "#" + focus
		}
		return b
	}
	return nil
}

// pageAddress returns the address of the page that the visitor views. It removes the parameter with the
// key of the message, because the message is shown only once.
func pageAddress(r *http.Request) string {
	here := *r.URL
	query := here.Query()
	query.Del("done")
	here.RawQuery = query.Encode()
	return here.RequestURI()
}

// returnPathOr returns the path of the page on which the visitor chose an action, as the request names it. If the request names no page,
// it returns fallback.
func returnPathOr(r *http.Request, fallback string) string {
	if back := r.URL.Query().Get("back"); back != "" && localPathOrRoot(back) == back {
		return back
	}
	return fallback
}

// readReturnPath returns the path of the page that is shown after a form was submitted. It is empty if the form
// names none. readReturnPath refuses any address that is not a page of the dashboard.
func (s *site) readReturnPath(r *http.Request) (string, error) {
	back := r.Form.Get("back")
	if back == "" {
		return "", nil
	}
	to, err := url.Parse(back)
	if err == nil && localPathOrRoot(back) == back && path.Clean(to.Path) == to.Path {
		if _, pattern := s.pages.Handler(&http.Request{Method: http.MethodGet, URL: to}); pattern != "" {
			return to.RequestURI(), nil
		}
	}
	return "", newFormError("Back: not a page of this dashboard. Nothing was changed.")
}
