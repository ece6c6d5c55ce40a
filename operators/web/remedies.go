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

// remedyWay describes how these pages perform an action of the API.
type remedyWay struct {
	act     decision.Act
	subject decision.Subject
	label   string // text of the button; %s is the id
	path    string // path of the form or page; %s is the id
	form    bool   // true: a POST to path performs the action at once; false: path is a page to fill in or to confirm
	role    string // role that the visitor needs
}

// remedyWays has a row for each action that a page can perform. It has no row for a new token or the
// registration of a device: both produce secrets, which only the command line shows.
func remedyWays() []remedyWay {
	return []remedyWay{
		{decision.ActUnblock, decision.OfDevice, "Unblock %s", "/devices/%s/unblock", true, "operator"},
		{decision.ActResume, decision.OfPool, "Resume %s", "/pools/%s/resume", true, "admin"},
		{decision.ActResume, decision.OfBatch, "Resume batch %s", "/batches/%s/resume", true, "operator"},
		{decision.ActRaiseCallers, decision.OfPool, "Let callers hold more of %s…", "/pools/%s/edit#callers", false, "admin"},
		{decision.ActRaiseCapacity, decision.OfPool, "Raise the capacity of %s…", "/pools/%s/edit#capacity", false, "admin"},
		{decision.ActEditWindows, decision.OfPool, "Edit the windows of %s…", "/pools/%s/edit#windows", false, "admin"},
		{decision.ActEditWindows, decision.OfBatch, "Edit the windows of batch %s…", "/batches/%s/edit#windows", false, "operator"},
		{decision.ActEditLimits, decision.OfPool, "Edit the limits of %s…", "/pools/%s/edit#limits", false, "admin"},
		{decision.ActEditLimits, decision.OfBatch, "Edit the limits of batch %s…", "/batches/%s/edit#limits", false, "operator"},
		{decision.ActEditLimits, decision.OfProfile, "Edit the limits of profile %s…", "/profiles/%s#limits", false, "admin"},
		{decision.ActEditEnd, decision.OfBatch, "Edit the end of batch %s…", "/batches/%s/edit#not_after", false, "operator"},
		{decision.ActEditMaxWait, decision.OfBatch, "Edit how long tasks of batch %s may wait…", "/batches/%s/edit#max_wait", false, "operator"},
		{decision.ActCancel, decision.OfTask, "Cancel task %s…", "/tasks/%s/cancel", false, "operator"},
		{decision.ActRetry, decision.OfTask, "Try task %s again", "/tasks/%s/retry", true, "operator"},
	}
}

// remedies renders the remedies against a reason to wait, for one visitor on one page.
type remedies struct {
	may  func(role string) bool
	back string // address of the page
}

// remedyBit is a part of the text of a remedy, followed by a command and its button.
type remedyBit struct {
	Text, Command string
	Button        *remedyButton // nil if the visitor lacks the role, or no page performs the action
}

// remedyButton performs an action and leads back to the page.
type remedyButton struct {
	Label, Path string
	Back        string // page to return to, for a form; empty for a link, whose Path contains the page
}

func (f *frame) remedies(r *http.Request) remedies {
	return remedies{may: func(role string) bool { return f.may(r, role) }, back: addressOf(r)}
}

// Of splits the text of a remedy so that a button follows each command in it. Commands that the text
// does not contain come after the text.
func (m remedies) Of(text string, actions []operators.Action) []remedyBit {
	var bits, others []remedyBit
	for _, a := range actions {
		bit := remedyBit{Command: a.Command, Button: m.button(a)}
		if before, after, said := strings.Cut(text, a.Command); said {
			bit.Text, text = before, after
			bits = append(bits, bit)
			continue
		}
		others = append(others, bit)
	}
	return append(append(bits, remedyBit{Text: text}), others...)
}

func (m remedies) button(a operators.Action) *remedyButton {
	for _, way := range remedyWays() {
		if string(way.act) != a.Action || string(way.subject) != a.Subject || !m.may(way.role) {
			continue
		}
		b := &remedyButton{Label: fmt.Sprintf(way.label, a.ID), Path: fmt.Sprintf(way.path, url.PathEscape(a.ID))}
		if way.form {
			b.Back = m.back
			return b
		}
		page, focus, _ := strings.Cut(b.Path, "#")
		b.Path = page + "?back=" + url.QueryEscape(m.back)
		if focus != "" {
			b.Path += "#" + focus
		}
		return b
	}
	return nil
}

// addressOf returns the address of the page, without the parameter of the message that the page shows
// once.
func addressOf(r *http.Request) string {
	here := *r.URL
	query := here.Query()
	query.Del("done")
	here.RawQuery = query.Encode()
	return here.RequestURI()
}

// backOr returns the page from which a visitor came to perform an action. If the request names none, it
// returns usual.
func backOr(r *http.Request, usual string) string {
	if back := r.URL.Query().Get("back"); back != "" && ownPath(back) == back {
		return back
	}
	return usual
}

// backOf returns the page to which a form leads back. It is empty if the form names none. backOf
// refuses any address that is not a page of the dashboard.
func (s *site) backOf(r *http.Request) (string, error) {
	back := r.Form.Get("back")
	if back == "" {
		return "", nil
	}
	to, err := url.Parse(back)
	if err == nil && ownPath(back) == back && path.Clean(to.Path) == to.Path {
		if _, pattern := s.pages.Handler(&http.Request{Method: http.MethodGet, URL: to}); pattern != "" {
			return to.RequestURI(), nil
		}
	}
	return "", badForm("Back: it is no page of this dashboard. Nothing was changed.")
}
