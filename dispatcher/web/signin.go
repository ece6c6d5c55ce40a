package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/gate"
)

// signInForm is the content of the sign-in page.
type signInForm struct {
	Next    string
	Wrong   bool
	Link    bool          // what was wrong is a link
	Dev     bool          // dev printed a link
	Wait    time.Duration // locked out
	Proxy   bool          // with all others behind a proxy that is not trusted
	Plain   bool          // over plain HTTP, from afar: no browser would keep the cookie
	Failed  bool
	Version string
}

func (w *Web) signInPage(rw http.ResponseWriter, r *http.Request) {
	form := signInForm{Next: ownPath(r.URL.Query().Get("next"))}
	link := r.URL.Query().Get("link")
	if link == "" || r.Method != http.MethodGet { // HEAD is of a preview
		w.showSignIn(rw, r, http.StatusOK, form)
		return
	}
	if _, err := w.visitor(r); err == nil { // used by this browser
		http.Redirect(rw, r, w.url(form.Next), http.StatusSeeOther)
		return
	}
	form.Link = true
	w.enter(rw, r, form, w.sessions.follow, link)
}

func (w *Web) showSignIn(rw http.ResponseWriter, r *http.Request, status int, form signInForm) {
	form.Plain = r.TLS == nil && r.Header.Get("X-Forwarded-Proto") != "https" && !onLoopback(r)
	form.Dev = w.options.Link != ""
	w.write(rw, r, status, "sign-in", form)
}

// ownPath is a path of this site, or its first page.
func ownPath(path string) string {
	unsafe := strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) // browsers leave some of them out
	u, err := url.Parse(path)
	if err != nil || unsafe || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return "/"
	}
	return path
}

func (w *Web) signIn(rw http.ResponseWriter, r *http.Request) {
	w.enter(rw, r, signInForm{Next: ownPath(r.PostFormValue("next"))}, w.sessions.open, strings.TrimSpace(r.PostFormValue("token")))
}

// enter gives the browser the session that open opens for a token or a link. Those that are
// wrong are counted by address.
func (w *Web) enter(
	rw http.ResponseWriter, r *http.Request, form signInForm, open func(ctx context.Context, with string) (secret string, err error), with string,
) {
	from := w.options.Gate.From(r)
	refusal := gate.Refusal{At: gate.SignIn, From: from, Detail: "sign-in"}
	if w.options.Gate.Proxied(r) {
		refusal.Detail = "sign-in, through a proxy that is not trusted"
	}
	if form.Wait = w.options.Gate.Wait(from, ""); form.Wait > 0 {
		refusal.Reason = gate.LockedOut
		w.options.Gate.Refuse(r.Context(), refusal)
		form.Proxy = w.options.Gate.Proxied(r)
		w.showSignIn(rw, r, http.StatusTooManyRequests, form)
		return
	}
	secret, err := open(r.Context(), with)
	switch {
	case errors.Is(err, errSignedOut):
		refusal.Reason, refusal.Guess = gate.Unauthenticated, true
		w.options.Gate.Refuse(r.Context(), refusal)
		form.Wrong = true
		w.showSignIn(rw, r, http.StatusUnauthorized, form)
		return
	case err != nil:
		w.options.Logger.ErrorContext(r.Context(), "sign-in failed", "err", err)
		form.Failed = true
		w.showSignIn(rw, r, http.StatusServiceUnavailable, form)
		return
	}
	http.SetCookie(rw, sessionCookie(secret, int(sessionLife.Seconds())))
	http.Redirect(rw, r, w.url(form.Next), http.StatusSeeOther)
}

func (w *Web) signOut(rw http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if err := w.sessions.close(r.Context(), cookie.Value); err != nil {
			w.fail(rw, r, err)
			return
		}
	}
	http.SetCookie(rw, sessionCookie("", -1))
	http.Redirect(rw, r, w.url("/sign-in"), http.StatusSeeOther)
}

func sessionCookie(value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: age, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}
