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

// remedyWay is the way of these pages to an action of the API.
type remedyWay struct {
	act     decision.Act
	subject decision.Subject
	label   string // %s is the id
	path    string // likewise
	form    bool   // the path takes it at once; else it is a page to fill in or to confirm
	role    string // that may
}

// remedyWays has a row for each action that a page can do. A device's new token and its
// registration are none: they are secrets, and only a terminal shows them.
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

// remedies show to one visitor, on one page, what changes a reason to wait.
type remedies struct {
	may  func(role string) bool
	back string // the page
}

// remedyBit is a stretch of the text of a remedy; then a command and its button.
type remedyBit struct {
	Text, Command string
	Button        *remedyButton // nil: the visitor may not, or no page does it
}

// remedyButton does an action and leads back.
type remedyButton struct {
	Label, Path string
	Back        string // of a form; empty: it is a link, which has it
}

func (f *frame) remedies(r *http.Request) remedies {
	return remedies{may: func(role string) bool { return f.may(r, role) }, back: addressOf(r)}
}

// Of is the text of a remedy, with a button behind each command that it has. A command that
// the text does not have follows it.
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

// addressOf is the page's own address, without the message that it shows once.
func addressOf(r *http.Request) string {
	here := *r.URL
	query := here.Query()
	query.Del("done")
	here.RawQuery = query.Encode()
	return here.RequestURI()
}

// backOr is the page that a visitor came from to do something, or else its usual next one.
func backOr(r *http.Request, usual string) string {
	if back := r.URL.Query().Get("back"); back != "" && ownPath(back) == back {
		return back
	}
	return usual
}

// backOf is the page to which a form leads back; empty: it names none. Any other
// address is refused.
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
