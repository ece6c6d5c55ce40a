package web

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
)

// visitorKey is the context key of the visitor of a request.
type visitorKey struct{}

// withVisitor returns ctx with the visitor, the operator who views the page.
func withVisitor(ctx context.Context, visitor api.Operator) context.Context {
	return context.WithValue(ctx, visitorKey{}, visitor)
}

func visitorOf(ctx context.Context) api.Operator {
	who, _ := ctx.Value(visitorKey{}).(api.Operator)
	return who
}

// pageSender has what the handlers of all pages need: the templates, the settings, and methods that send a page or an error page.
type pageSender struct {
	set      *template.Template
	prefix   string
	readOnly bool
	system   System
	isLive   func(address *url.URL) bool // reports whether the page at address is live: the hub reads it again while it is open
	gate     *gate.Gate
	logger   *slog.Logger
	now      func() time.Time
}

func newPageSender(options Options) *pageSender {
	set := template.Must(template.New("").Funcs(templateFuncs(options)).ParseFS(templates, "templates/*.html"))
	return &pageSender{set: set, prefix: options.Prefix, system: options.System, readOnly: options.ReadOnly, gate: options.Gate, logger: options.Logger, now: options.Now}
}

// prefixedPath returns the address of path behind the prefix of a proxy.
func (f *pageSender) prefixedPath(path string) string { return f.prefix + path }

// mayOfferActions reports whether the page for the request may offer actions that need a role.
func (f *pageSender) mayOfferActions(r *http.Request, requiredRole string) bool {
	return !f.readOnly && visitorOf(r.Context()).May(requiredRole)
}

// refuseVisitor returns the error page's problem for a visitor who may not act: the visitor lacks requiredRole, or the dashboard is
// read-only. If the visitor lacks requiredRole, it also reports the refusal to the gate.
func (f *pageSender) refuseVisitor(r *http.Request, requiredRole string) (refusal *operators.Problem) {
	who := visitorOf(r.Context())
	if !who.May(requiredRole) {
		f.gate.CountRefusal(r.Context(), gate.Refusal{
			EntryPoint: gate.API, Reason: gate.Forbidden, Principal: who.Name, From: who.From, Detail: r.Method + " " + r.URL.Path,
		})
	}
	detail := "Your token may not do that: it needs the role " + requiredRole + ". Nothing was changed."
	if f.readOnly {
		detail = "This dashboard is read-only. Nothing was changed."
	}
	return &operators.Problem{Status: http.StatusForbidden, Detail: detail}
}

// shell is the data of the template around every page: navigation, visitor, theme and messages.
type shell struct {
	Title, Section string
	Main           template.HTML
	Version        string
	Live           string // the address of the page, for its stream; empty if the page does not change
	Snapshot       string // snapshot of the ledger that the page shows; empty if it shows none
	Who            api.Operator
	ReadOnly       bool
	Mode           string
	Done           string // message about the action that was just done; empty if there is none
	Now            int64  // ms since 1970
	Nav            []navigationLink
	Find           string // the text that the visitor searched for; empty if there was no search
	Theme          string // light or dark; empty means the theme of the system
	Retry          int    // the browser loads the page again after this number of seconds; 0 means that it does not
}

// chosenTheme returns the theme that was chosen in this browser. It is empty if none was chosen.
func chosenTheme(r *http.Request) (theme string) {
	if chosen, err := r.Cookie("theme"); err == nil && (chosen.Value == "light" || chosen.Value == "dark") {
		return chosen.Value
	}
	return ""
}

// navigationLink is a link in the navigation of every page.
type navigationLink struct{ Section, Name, Path string }

func navigationLinks() []navigationLink {
	return []navigationLink{
		{"pools", "Pools", "/"},
		{"batches", "Batches", "/batches"},
		{"tasks", "Tasks", "/tasks"},
		{"devices", "Devices", "/devices"},
		{"limits", "Limits", "/limits"},
		{"activity", "Activity", "/activity"},
		{"system", "System", "/system"},
	}
}

// doneMessages returns, by key, the messages about completed actions. If the address of a page has any other key, the page shows no
// message.
func doneMessages() (textByKey map[string]string) {
	return map[string]string{
		"pool-changed": "The pool was changed.", "profile-changed": "The profile was changed: in effect with the next report of its devices.", "paused": "Paused. Dispatched tasks continue; no new grants are made.", "resumed": "Resumed.",
		"paused-stopping": "Paused. The devices that hold a slot are asked to stop with their next report; their tasks wait again.",
		"release-asked":   "The holder is asked to stop with its next report. The slot is free once it answers, or when its lease ends.",
		"released":        "The slot is free. Its device may continue until its lease would have ended.",
		"created":         "The batch was created.", "batch-changed": "The batch was changed.", "cancelled": "Cancelled. Devices of dispatched tasks are asked to stop with their next report.",
		"retried": "Tried again: the tasks are pending.", "blocked": "The device is blocked.", "unblocked": "The device is unblocked.",
		"token-deleted": "The token is deleted: all replicas refuse it within 5 s.",
	}
}

// sendPage renders content and sends it with this HTTP status. If loadErr is not nil or rendering fails, it sends an error page instead.
func (f *pageSender) sendPage(rw http.ResponseWriter, r *http.Request, status int, content page, loadErr error) {
	var rendered *renderedPage
	again := formInputOf(r)
	if again != nil {
		content.entered = again.values
	}
	if loadErr == nil {
		rendered, loadErr = f.render(content)
	}
	if again != nil && loadErr == nil {
		var notice template.HTML
		notice, status = again.renderNotice(r.Context(), f)
		rendered.main = notice + rendered.main
	}
	if loadErr != nil {
		f.sendError(rw, r, loadErr)
		return
	}
	if content.keepable {
		rw.Header().Set("Cache-Control", "private, no-cache")
	}
	f.sendRendered(rw, r, status, content.section, rendered)
}

// sendRendered sends a rendered page with this HTTP status. section is the current entry of the navigation.
func (f *pageSender) sendRendered(rw http.ResponseWriter, r *http.Request, status int, section string, rendered *renderedPage) {
	out := shell{
		Title: rendered.title, Section: section, Main: rendered.main, Snapshot: rendered.snapshot, Version: rendered.version(), Who: visitorOf(r.Context()), Mode: f.system.Mode,
		ReadOnly: f.readOnly, Done: doneMessages()[r.URL.Query().Get("done")],
		Now: f.now().UnixMilli(), Nav: navigationLinks(), Theme: chosenTheme(r), Find: rendered.searchText,
	}
	if isReloadedByBrowser(r, status) {
		out.Retry = retryPageEvery
	}
	if status == http.StatusOK && rendered.watch != (updateTrigger{}) || f.isReplacedWithoutReload(r, status) {
		out.Live = pageAddress(r)
	}
	f.writeTemplate(rw, r, status, "shell", out)
}

// writeTemplate renders the template templateName with data and sends it with this HTTP status.
func (f *pageSender) writeTemplate(rw http.ResponseWriter, r *http.Request, status int, templateName string, data any) {
	var text bytes.Buffer
	if err := f.set.ExecuteTemplate(&text, templateName, data); err != nil {
		f.logger.ErrorContext(r.Context(), "page not rendered", "template", templateName, "err", err)
		http.Error(rw, "internal error; its cause is in the log", http.StatusInternalServerError)
		return
	}
	withCompression(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.WriteHeader(status)
		_, _ = rw.Write(text.Bytes())
	})(rw, r)
}

func (f *pageSender) sendError(rw http.ResponseWriter, r *http.Request, err error) {
	if _, ok := errors.AsType[*operators.Problem](err); !ok {
		f.logger.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
	}
	var kept *keptForm
	if again := formInputOf(r); again != nil && len(again.values) > 0 { // a page that shows a form again has failed: keep the input
		kept = &keptForm{Next: r.URL.RequestURI(), Input: again.values.Encode()}
		if again.failure != nil {
			err = again.failure
		}
	}
	status := errorStatus(err)
	rendered, renderErr := f.render(page{title: http.StatusText(status), template: "problem", data: map[string]any{
		"Status": status, "Title": http.StatusText(status), "Detail": f.outageText(r.Context(), err), "Post": r.Method == http.MethodPost || kept != nil, "Kept": kept, "Retry": isReloadedByBrowser(r, status),
	}})
	if renderErr != nil {
		http.Error(rw, http.StatusText(status), status)
		return
	}
	f.sendRendered(rw, r, status, "", rendered)
}

// errorStatus returns the HTTP status of a page that shows err.
func errorStatus(err error) (httpStatus int) {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return p.Status
	}
	return http.StatusServiceUnavailable
}

// errorText returns the text of an error for people. It returns the detail of a problem of the API in the
// wording of forms. For any other error it returns a fixed text, because the error may have internal details.
func errorText(err error) string {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return translateFieldPath(cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))
	}
	return "The ledger cannot be reached."
}

// translateFieldPath replaces a path of the API at the start of detail by the words of the form. For example, limits[2].per becomes "Limit
// 3, per".
func translateFieldPath(detail string) string {
	list, rest, found := strings.Cut(detail, "[")
	name := map[string]string{"limits": "Limit", "windows": "Window"}[list]
	index, rest, closed := strings.Cut(rest, "]")
	n, err := strconv.Atoi(index)
	if name == "" || !found || !closed || err != nil {
		return detail
	}
	if member, ok := strings.CutPrefix(rest, "."); ok {
		rest = ", " + member
	}
	return fmt.Sprintf("%s %d%s", name, n+1, rest)
}

// newFormError returns the error for a form with an invalid input. detail is the text for people.
func newFormError(detail string) error {
	return &operators.Problem{Status: http.StatusUnprocessableEntity, Detail: detail}
}

//go:embed templates
var templates embed.FS

// page is the content that a loader returns, with the name of its template.
type page struct {
	title      string
	section    string // entry of the navigation that is current
	template   string
	data       any
	watch      updateTrigger // when a live page is read again while it is open
	snapshot   string        // snapshot of the ledger; empty if the page was not read in a snapshot
	searchText string        // the text that the visitor searched for
	entered    url.Values    // input of the form on the page that is shown again; nil if it is shown for the first time
	keepable   bool          // the browser may keep the page for its back button, although it answers a form
}

// renderedPage is a page as HTML: the whole page, and its pieces (the parts that are sent again when they change).
type renderedPage struct {
	title      string
	main       template.HTML
	order      []string // ids of the pieces
	pieces     map[string]template.HTML
	watch      updateTrigger
	snapshot   string
	searchText string
}

// version returns a hash of the content. Pages with different content have different versions.
func (s *renderedPage) version() (hash string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.main)) // writing to a hash never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// templateData is the data that the template of a page gets. Its method Piece adds the pieces of the page to the field page.
type templateData struct {
	Data    any
	Entered url.Values // input of the form on the page, if the form is shown again

	set  *template.Template
	page *renderedPage
}

// Piece renders a part of the page that is sent again when it changes, from the template templateName with data. The outermost element of
// the template must have the id elementID.
func (c *templateData) Piece(elementID, templateName string, data any) (template.HTML, error) {
	html, err := executeTemplate(c.set, templateName, data)
	c.page.order = append(c.page.order, elementID)
	c.page.pieces[elementID] = html
	return html, err
}

func (f *pageSender) render(content page) (rendered *renderedPage, err error) {
	rendered = &renderedPage{title: content.title, pieces: map[string]template.HTML{}, watch: content.watch, snapshot: content.snapshot, searchText: content.searchText}
	if rendered.main, err = executeTemplate(f.set, content.template, &templateData{Data: content.data, Entered: content.entered, set: f.set, page: rendered}); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", content.template, err)
	}
	return rendered, nil
}

func executeTemplate(set *template.Template, templateName string, data any) (template.HTML, error) {
	var out strings.Builder
	err := set.ExecuteTemplate(&out, templateName, data)
	return template.HTML(out.String()), err //nolint:gosec // escaped by html/template just now
}
