package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/fleetslots/dispatcher/dispatcher/api"
	"github.com/fleetslots/dispatcher/dispatcher/gate"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type visitorKey struct{}

func withVisitor(ctx context.Context, who api.Operator) context.Context {
	return context.WithValue(ctx, visitorKey{}, who)
}

func visitorOf(ctx context.Context) api.Operator {
	who, _ := ctx.Value(visitorKey{}).(api.Operator)
	return who
}

// may says whether the page may offer actions that need a role.
func (w *Web) may(r *http.Request, role string) bool {
	return !w.options.ReadOnly && visitorOf(r.Context()).May(role)
}

// inside serves the pages behind the sign-in.
func (w *Web) inside(rw http.ResponseWriter, r *http.Request) {
	who, err := w.visitor(r)
	switch {
	case errors.Is(err, errSignedOut):
		if r.Method == http.MethodGet {
			http.Redirect(rw, r, w.url("/sign-in?next="+url.QueryEscape(r.URL.RequestURI())), http.StatusSeeOther)
			return
		}
		w.fail(rw, r, &operators.Problem{Status: http.StatusUnauthorized, Detail: "Nobody is signed in any more. Nothing was changed."})
	case err != nil:
		w.fail(rw, r, err)
	default:
		w.pages.ServeHTTP(rw, r.WithContext(withVisitor(r.Context(), who)))
	}
}

// loader reads the content of a page.
type loader func(r *http.Request) (page, error)

// inOneMoment has a loader read one moment of the ledger, so that the numbers
// of a page agree with each other, and has the page say which moment that is.
func (w *Web) inOneMoment(load loader) loader {
	return func(r *http.Request) (p page, err error) {
		err = w.options.Ledger.InOneSnapshot(r.Context(), func(ctx context.Context, at store.Snapshot) error {
			p, err = load(r.WithContext(ctx))
			p.moment = at.String()
			return err
		})
		return p, err
	}
}

// checked asks the dependencies before that moment, which keeps a connection:
// one that does not answer is waited for.
func (w *Web) checked(load func(r *http.Request, checks []dependency) (page, error)) loader {
	return func(r *http.Request) (page, error) {
		checks := w.dependencies(r.Context())
		return w.inOneMoment(func(r *http.Request) (page, error) { return load(r, checks) })(r)
	}
}

// page serves a loader to a browser.
func (w *Web) page(pattern string, load loader) {
	w.pages.HandleFunc("GET "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		p, err := load(r)
		var made *sheet
		if err == nil {
			made, err = w.sheets.render(p)
		}
		if err != nil {
			w.fail(rw, r, err)
			return
		}
		w.send(rw, r, http.StatusOK, p.section, made)
	})
}

// livePage is a page that follows what happens while it is open. The hub reads no other.
func (w *Web) livePage(pattern string, load loader) {
	w.page(pattern, load)
	w.livePages.HandleFunc(pattern, func(_ http.ResponseWriter, r *http.Request) {
		taken, _ := r.Context().Value(captureKey{}).(*capture)
		p, err := load(r)
		if err == nil {
			taken.sheet, err = w.sheets.render(p)
		}
		taken.err = err
	})
}

// act serves a form: change does the work, and returns the next page and the
// message to show there. A refusal is shown on the page it came from.
func (w *Web) act(pattern, role string, change func(r *http.Request) (next, said string, err error)) {
	w.pages.HandleFunc("POST "+pattern, func(rw http.ResponseWriter, r *http.Request) {
		if !w.may(r, role) {
			w.fail(rw, r, w.forbidden(r, role))
			return
		}
		if err := r.ParseForm(); err != nil {
			w.fail(rw, r, &operators.Problem{Status: http.StatusBadRequest, Detail: "The form could not be read: " + err.Error()})
			return
		}
		next, said, err := change(r)
		if err != nil {
			w.fail(rw, r, err)
			return
		}
		mark := "?"
		if strings.Contains(next, "?") {
			mark = "&"
		}
		http.Redirect(rw, r, w.url(next)+mark+"done="+url.QueryEscape(said), http.StatusSeeOther)
	})
}

// forbidden is the answer to a visitor without the role, of which the gate is told.
func (w *Web) forbidden(r *http.Request, role string) *operators.Problem {
	who := visitorOf(r.Context())
	if !who.May(role) {
		w.options.Gate.Refuse(r.Context(), gate.Refusal{
			At: gate.API, Reason: gate.Forbidden, Principal: who.Name, From: who.From, Detail: r.Method + " " + r.URL.Path,
		})
	}
	return &operators.Problem{Status: http.StatusForbidden, Detail: w.refusal(role)}
}

func (w *Web) refusal(role string) string {
	if w.options.ReadOnly {
		return "This dashboard is read-only. Nothing was changed."
	}
	return "Your token may not do that: it needs the role " + role + ". Nothing was changed."
}

// shell is the frame around every page.
type shell struct {
	Title, Section string
	Main           template.HTML
	Version        string
	Live           string // the page's own address, for its stream; empty: it does not change
	Moment         string // of the ledger, that the page shows; empty: it shows no numbers
	Who            api.Operator
	ReadOnly       bool
	Mode           string
	Done           string
	Now            int64
	Nav            []navigation
}

type navigation struct{ Section, Name, Path string }

func sections() []navigation {
	return []navigation{
		{"pools", "Pools", "/"},
		{"batches", "Batches", "/batches"},
		{"tasks", "Tasks", "/tasks"},
		{"devices", "Devices", "/devices"},
		{"activity", "Activity", "/activity"},
		{"system", "System", "/system"},
	}
}

// said are the only messages that an address can make a page show.
func said() map[string]string {
	return map[string]string{
		"pool-changed": "The pool was changed.", "paused": "Paused. Running tasks go on; nothing new is granted.", "resumed": "Resumed.",
		"release-asked": "The holder is told to stop with its next report. The slot is free once it answers, or when its lease ends.",
		"released":      "The slot is free. Its device may go on until its lease would have ended.",
		"created":       "The batch was created.", "cancelled": "Cancelled. Devices that run a task are told to stop with their next report.",
		"retried": "Tried again: the tasks are pending.", "blocked": "The device is blocked.", "unblocked": "The device is unblocked.",
	}
}

func (w *Web) send(rw http.ResponseWriter, r *http.Request, status int, section string, s *sheet) {
	who := visitorOf(r.Context())
	live := *r.URL
	query := live.Query()
	query.Del("done")
	live.RawQuery = query.Encode()
	out := shell{
		Title: s.title, Section: section, Main: s.main, Moment: s.moment, Version: s.version(), Who: who, Mode: w.options.System.Mode,
		ReadOnly: w.options.ReadOnly, Done: said()[r.URL.Query().Get("done")],
		Now: w.options.Now().UnixMilli(), Nav: sections(),
	}
	if status == http.StatusOK && s.watch != (watch{}) {
		out.Live = live.RequestURI()
	}
	w.write(rw, r, status, "shell", out)
}

func (w *Web) write(rw http.ResponseWriter, r *http.Request, status int, name string, data any) {
	var text bytes.Buffer
	if err := w.sheets.set.ExecuteTemplate(&text, name, data); err != nil {
		w.options.Logger.ErrorContext(r.Context(), "page not rendered", "template", name, "err", err)
		http.Error(rw, "something went wrong here; it was logged", http.StatusInternalServerError)
		return
	}
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.WriteHeader(status)
	_, _ = rw.Write(text.Bytes())
}

// fail shows a refusal or a failure.
func (w *Web) fail(rw http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusServiceUnavailable
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		status = p.Status
	} else {
		w.options.Logger.ErrorContext(r.Context(), "page failed", "path", r.URL.Path, "err", err)
	}
	made, renderErr := w.sheets.render(page{title: http.StatusText(status), template: "problem", data: map[string]any{
		"Status": status, "Title": http.StatusText(status), "Detail": plainError(err), "Post": r.Method == http.MethodPost,
	}})
	if renderErr != nil {
		http.Error(rw, http.StatusText(status), status)
		return
	}
	w.send(rw, r, status, "", made)
}

// plainError is an error for people: problems as they are, nothing of what is
// within.
func plainError(err error) string {
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		return cmp.Or(p.Detail, p.Title, http.StatusText(p.Status))
	}
	return "The ledger cannot be reached just now."
}

func (w *Web) routes() {
	w.routePools()
	w.routeGrid()
	w.routeBatches()
	w.routeTasks()
	w.routeDevices()
	w.routeActivity()
	w.routeSystem()
}
