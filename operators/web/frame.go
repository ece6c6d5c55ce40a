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

type visitorKey struct{}

func withVisitor(ctx context.Context, who api.Operator) context.Context {
	return context.WithValue(ctx, visitorKey{}, who)
}

func visitorOf(ctx context.Context) api.Operator {
	who, _ := ctx.Value(visitorKey{}).(api.Operator)
	return who
}

// frame has what the handlers of all pages need: the templates, the settings, and methods that send a page. A
// page can also be a refusal or a failure.
type frame struct {
	set      *template.Template
	prefix   string
	mode     string
	readOnly bool
	system   System
	isLive   func(address *url.URL) bool // reports whether the page at address is live: the hub reads it again while it is open
	gate     *gate.Gate
	logger   *slog.Logger
	now      func() time.Time
}

func newFrame(o Options) *frame {
	set := template.Must(template.New("").Funcs(templateFuncs(o)).ParseFS(templates, "templates/*.html"))
	return &frame{set: set, prefix: o.Prefix, mode: o.System.Mode, system: o.System, readOnly: o.ReadOnly, gate: o.Gate, logger: o.Logger, now: o.Now}
}

func (f *frame) url(path string) string { return f.prefix + path }

// may reports whether the page may offer actions that need a role.
func (f *frame) may(r *http.Request, role string) bool {
	return !f.readOnly && visitorOf(r.Context()).May(role)
}

// refuseVisitor returns the answer to a visitor who may not act. If the visitor lacks the role, it reports
// the refusal to the gate.
func (f *frame) refuseVisitor(r *http.Request, role string) *operators.Problem {
	who := visitorOf(r.Context())
	if !who.May(role) {
		f.gate.Refuse(r.Context(), gate.Refusal{
			EntryPoint: gate.API, Reason: gate.Forbidden, Principal: who.Name, From: who.From, Detail: r.Method + " " + r.URL.Path,
		})
	}
	detail := "Your token may not do that: it needs the role " + role + ". Nothing was changed."
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
	Done           string
	Now            int64
	Nav            []navigation
	Find           string // the text that the visitor searched for; empty if there was no search
	Theme          string // light or dark; empty means the theme of the system
}

// themeOf returns the theme that was chosen in this browser. It is empty if none was chosen.
func themeOf(r *http.Request) string {
	if chosen, err := r.Cookie("theme"); err == nil && (chosen.Value == "light" || chosen.Value == "dark") {
		return chosen.Value
	}
	return ""
}

type navigation struct{ Section, Name, Path string }

func sections() []navigation {
	return []navigation{
		{"pools", "Pools", "/"},
		{"batches", "Batches", "/batches"},
		{"tasks", "Tasks", "/tasks"},
		{"devices", "Devices", "/devices"},
		{"limits", "Limits", "/limits"},
		{"activity", "Activity", "/activity"},
		{"system", "System", "/system"},
	}
}

// doneMessages returns, by key, the messages about completed actions. A page shows only these
// messages, whatever key its address contains.
func doneMessages() map[string]string {
	return map[string]string{
		"pool-changed": "The pool was changed.", "profile-changed": "The profile was changed: in effect with the next report of its devices.", "paused": "Paused. Running tasks continue; no new grants are made.", "resumed": "Resumed.",
		"release-asked": "The holder is asked to stop with its next report. The slot is free once it answers, or when its lease ends.",
		"released":      "The slot is free. Its device may continue until its lease would have ended.",
		"created":       "The batch was created.", "batch-changed": "The batch was changed.", "cancelled": "Cancelled. Devices that run a task are asked to stop with their next report.",
		"retried": "Tried again: the tasks are pending.", "blocked": "The device is blocked.", "unblocked": "The device is unblocked.",
	}
}

// sendPage renders a page and sends it. If err is not nil or rendering fails, it sends the failure.
func (f *frame) sendPage(rw http.ResponseWriter, r *http.Request, status int, p page, err error) {
	var rendered *renderedPage
	if err == nil {
		rendered, err = f.render(p)
	}
	if err != nil {
		f.sendError(rw, r, err)
		return
	}
	f.sendRendered(rw, r, status, p.section, rendered)
}

func (f *frame) sendRendered(rw http.ResponseWriter, r *http.Request, status int, section string, s *renderedPage) {
	out := shell{
		Title: s.title, Section: section, Main: s.main, Snapshot: s.snapshot, Version: s.version(), Who: visitorOf(r.Context()), Mode: f.mode,
		ReadOnly: f.readOnly, Done: doneMessages()[r.URL.Query().Get("done")],
		Now: f.now().UnixMilli(), Nav: sections(), Theme: themeOf(r), Find: s.searchText,
	}
	if status == http.StatusOK && s.watch != (watch{}) || f.recoversItself(r, status) {
		out.Live = pageAddress(r)
	}
	f.writeTemplate(rw, r, status, "shell", out)
}

func (f *frame) writeTemplate(rw http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var text bytes.Buffer
	if err := f.set.ExecuteTemplate(&text, name, data); err != nil {
		f.logger.ErrorContext(r.Context(), "page not rendered", "template", name, "err", err)
		http.Error(rw, "internal error; its cause is in the log", http.StatusInternalServerError)
		return
	}
	compressed(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.WriteHeader(status)
		_, _ = rw.Write(text.Bytes())
	})(rw, r)
}

// sendError sends a page that shows a refusal or a failure.
func (f *frame) sendError(rw http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if _, ok := errors.AsType[*operators.Problem](err); !ok {
		f.logger.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
	}
	rendered, renderErr := f.render(page{title: http.StatusText(status), template: "problem", data: map[string]any{
		"Status": status, "Title": http.StatusText(status), "Detail": f.outageText(r.Context(), err), "Post": r.Method == http.MethodPost, "Heals": f.recoversItself(r, status),
	}})
	if renderErr != nil {
		http.Error(rw, http.StatusText(status), status)
		return
	}
	f.sendRendered(rw, r, status, "", rendered)
}

func statusOf(err error) int {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return p.Status
	}
	return http.StatusServiceUnavailable
}

// errorText returns the text of an error for people. It returns the detail of a problem of the API in the
// wording of forms. For any other error it returns a fixed text, because the error may have internal details.
func errorText(err error) string {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return formWording(cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))
	}
	return "The ledger cannot be reached."
}

// formWording names an entry of a list as a form does: "Limit 3, per" instead of limits[2].per.
func formWording(detail string) string {
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
	watch      watch
	snapshot   string // snapshot of the ledger; empty if the page was not read in a snapshot
	searchText string // the text that the visitor searched for
}

// renderedPage is a page as HTML: the whole page, and its pieces (the parts that are sent again when they
// change).
type renderedPage struct {
	title      string
	main       template.HTML
	order      []string // ids of the pieces
	pieces     map[string]template.HTML
	watch      watch
	snapshot   string
	searchText string
}

// version returns a hash of the content. Pages with different content have different versions.
func (s *renderedPage) version() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.main)) // writing to a hash never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// templateData is the data that the template of a page gets.
type templateData struct {
	Data any

	set  *template.Template
	page *renderedPage
}

// Piece renders a part of the page that is sent again when it changes. The outermost element of the
// template must have this id.
func (c *templateData) Piece(id, name string, data any) (template.HTML, error) {
	html, err := executeTemplate(c.set, name, data)
	c.page.order = append(c.page.order, id)
	c.page.pieces[id] = html
	return html, err
}

func (f *frame) render(p page) (rendered *renderedPage, err error) {
	rendered = &renderedPage{title: p.title, pieces: map[string]template.HTML{}, watch: p.watch, snapshot: p.snapshot, searchText: p.searchText}
	if rendered.main, err = executeTemplate(f.set, p.template, &templateData{Data: p.data, set: f.set, page: rendered}); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", p.template, err)
	}
	return rendered, nil
}

func executeTemplate(set *template.Template, name string, data any) (template.HTML, error) {
	var out strings.Builder
	err := set.ExecuteTemplate(&out, name, data)
	return template.HTML(out.String()), err //nolint:gosec // escaped by html/template just now
}
