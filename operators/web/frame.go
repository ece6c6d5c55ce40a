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

// frame is the part of an answer that all pages share: the shell, refusals and failures.
type frame struct {
	set      *template.Template
	prefix   string
	mode     string
	readOnly bool
	system   System
	isLive   func(address *url.URL) bool // reports whether the hub reads the page at address
	gate     *gate.Gate
	logger   *slog.Logger
	now      func() time.Time
}

func newFrame(o Options) *frame {
	set := template.Must(template.New("").Funcs(functions(o)).ParseFS(templates, "templates/*.html"))
	return &frame{set: set, prefix: o.Prefix, mode: o.System.Mode, system: o.System, readOnly: o.ReadOnly, gate: o.Gate, logger: o.Logger, now: o.Now}
}

func (f *frame) url(path string) string { return f.prefix + path }

// may reports whether the page may offer actions that need a role.
func (f *frame) may(r *http.Request, role string) bool {
	return !f.readOnly && visitorOf(r.Context()).May(role)
}

// forbidden returns the answer to a visitor who may not act. If the visitor lacks the role, it reports
// the refusal to the gate.
func (f *frame) forbidden(r *http.Request, role string) *operators.Problem {
	who := visitorOf(r.Context())
	if !who.May(role) {
		f.gate.Refuse(r.Context(), gate.Refusal{
			At: gate.API, Reason: gate.Forbidden, Principal: who.Name, From: who.From, Detail: r.Method + " " + r.URL.Path,
		})
	}
	detail := "Your token may not do that: it needs the role " + role + ". Nothing was changed."
	if f.readOnly {
		detail = "This dashboard is read-only. Nothing was changed."
	}
	return &operators.Problem{Status: http.StatusForbidden, Detail: detail}
}

// shell is the frame around every page.
type shell struct {
	Title, Section string
	Main           template.HTML
	Version        string
	Live           string // the address of the page, for its stream; empty if the page does not change
	Moment         string // snapshot of the ledger that the page shows; empty if it shows none
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

// said returns, by key, the only messages that an address can make a page show.
func said() map[string]string {
	return map[string]string{
		"pool-changed": "The pool was changed.", "profile-changed": "The profile was changed: in effect with the next report of its devices.", "paused": "Paused. Running tasks go on; nothing new is granted.", "resumed": "Resumed.",
		"release-asked": "The holder is told to stop with its next report. The slot is free once it answers, or when its lease ends.",
		"released":      "The slot is free. Its device may go on until its lease would have ended.",
		"created":       "The batch was created.", "batch-changed": "The batch was changed.", "cancelled": "Cancelled. Devices that run a task are told to stop with their next report.",
		"retried": "Tried again: the tasks are pending.", "blocked": "The device is blocked.", "unblocked": "The device is unblocked.",
	}
}

// answer renders a page and sends it. If err is not nil or rendering fails, it sends the failure.
func (f *frame) answer(rw http.ResponseWriter, r *http.Request, status int, p page, err error) {
	var made *sheet
	if err == nil {
		made, err = f.render(p)
	}
	if err != nil {
		f.fail(rw, r, err)
		return
	}
	f.send(rw, r, status, p.section, made)
}

func (f *frame) send(rw http.ResponseWriter, r *http.Request, status int, section string, s *sheet) {
	out := shell{
		Title: s.title, Section: section, Main: s.main, Moment: s.moment, Version: s.version(), Who: visitorOf(r.Context()), Mode: f.mode,
		ReadOnly: f.readOnly, Done: said()[r.URL.Query().Get("done")],
		Now: f.now().UnixMilli(), Nav: sections(), Theme: themeOf(r), Find: s.find,
	}
	if status == http.StatusOK && s.watch != (watch{}) || f.heals(r, status) {
		out.Live = addressOf(r)
	}
	f.write(rw, r, status, "shell", out)
}

func (f *frame) write(rw http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var text bytes.Buffer
	if err := f.set.ExecuteTemplate(&text, name, data); err != nil {
		f.logger.ErrorContext(r.Context(), "page not rendered", "template", name, "err", err)
		http.Error(rw, "something went wrong here; it was logged", http.StatusInternalServerError)
		return
	}
	packed(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/html; charset=utf-8")
		rw.WriteHeader(status)
		_, _ = rw.Write(text.Bytes())
	})(rw, r)
}

// fail sends a page that shows a refusal or a failure.
func (f *frame) fail(rw http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if _, ok := errors.AsType[*operators.Problem](err); !ok {
		f.logger.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
	}
	made, renderErr := f.render(page{title: http.StatusText(status), template: "problem", data: map[string]any{
		"Status": status, "Title": http.StatusText(status), "Detail": f.outage(r.Context(), err), "Post": r.Method == http.MethodPost, "Heals": f.heals(r, status),
	}})
	if renderErr != nil {
		http.Error(rw, http.StatusText(status), status)
		return
	}
	f.send(rw, r, status, "", made)
}

func statusOf(err error) int {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return p.Status
	}
	return http.StatusServiceUnavailable
}

// plainError returns the text of an error for people. It words a problem of the API as it is, and hides
// internal details of any other error.
func plainError(err error) string {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return inWords(cmp.Or(p.Detail, p.Title, http.StatusText(p.Status)))
	}
	return "The ledger cannot be reached just now."
}

// inWords names an entry of a list as a form does: "Limit 3, per" instead of limits[2].per.
func inWords(detail string) string {
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

func badForm(detail string) error {
	return &operators.Problem{Status: http.StatusUnprocessableEntity, Detail: detail}
}

//go:embed templates
var templates embed.FS

// page is the content that a loader returns, with the name of its template.
type page struct {
	title    string
	section  string // entry of the navigation that is current
	template string
	data     any
	watch    watch
	moment   string // snapshot of the ledger; empty if the page was not read in a snapshot
	find     string // the text that the visitor searched for
}

// sheet is a rendered page: the whole page, and its pieces, which are sent again when they change.
type sheet struct {
	title  string
	main   template.HTML
	order  []string // ids of the pieces
	pieces map[string]template.HTML
	watch  watch
	moment string
	find   string
}

// version returns a hash of the content. Sheets with different content have different versions.
func (s *sheet) version() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.main)) // writing to a hash never fails
	return fmt.Sprintf("%016x", h.Sum64())
}

// canvas is the data that the template of a page gets.
type canvas struct {
	Data any

	set   *template.Template
	sheet *sheet
}

// Piece renders a part of the page that is sent again when it changes. The outermost element of the
// template must have this id.
func (c *canvas) Piece(id, name string, data any) (template.HTML, error) {
	html, err := executed(c.set, name, data)
	c.sheet.order = append(c.sheet.order, id)
	c.sheet.pieces[id] = html
	return html, err
}

func (f *frame) render(p page) (made *sheet, err error) {
	made = &sheet{title: p.title, pieces: map[string]template.HTML{}, watch: p.watch, moment: p.moment, find: p.find}
	if made.main, err = executed(f.set, p.template, &canvas{Data: p.data, set: f.set, sheet: made}); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", p.template, err)
	}
	return made, nil
}

func executed(set *template.Template, name string, data any) (template.HTML, error) {
	var out strings.Builder
	err := set.ExecuteTemplate(&out, name, data)
	return template.HTML(out.String()), err //nolint:gosec // escaped by html/template just now
}
