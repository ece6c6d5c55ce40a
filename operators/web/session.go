package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
)

const (
	// The prefix __Host- has two effects in browsers: they accept the cookie only over TLS (or on the
	// loopback), and other hosts of the same domain can neither set nor get it.
	cookieName = "__Host-dispatcher"
	// sessionLife is the time from the sign-in to the end of a session. Using the session does not extend it. The sign-in page (shell.html)
	// repeats this time.
	sessionLife = 12 * time.Hour
	// sessionCheckLifetime is the lifetime of a cached check of a session. The streams of one session share the check.
	sessionCheckLifetime = 5 * time.Second
	// bootstrapName is the name of the operator with the token of the configuration.
	bootstrapName = "bootstrap"
)

// errSignedOut means that the request has no valid session: there is none, its token was revoked, or the
// given token or link cannot sign in.
var errSignedOut = errors.New("no operator is signed in")

// sessions manages the sessions of signed-in visitors. The ledger stores them, so they are valid at all
// replicas. A session stores the hash of its token, so revoking the token ends its sessions.
type sessions struct {
	ledger    Ledger
	adminHash []byte // hash of the bootstrap token, or nil without one
	linkMu    sync.Mutex
	link      string // secret of the sign-in link; empty without a link or once it was used
	now       func() time.Time

	recentChecks sync.Map // hash of a session -> checkedSession
}

// checkedSession is the operator of a session, as it was read from the ledger. It is used until validUntil.
type checkedSession struct {
	operator   api.Operator
	validUntil time.Time
}

// hashToken returns the SHA-256 of a token, or nil if the token is empty.
func hashToken(token string) []byte {
	if token == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// openWithToken signs in with an operator token and returns the secret of the new session. It returns
// errSignedOut if the token is unknown or lacks the role viewer.
func (s *sessions) openWithToken(ctx context.Context, clientAddr netip.Addr, token string) (secret string, err error) {
	hash := hashToken(token)
	who, err := s.tokenOwner(ctx, hash)
	if err != nil {
		return "", err
	}
	if !who.May("viewer") {
		return "", errSignedOut
	}
	return s.openSession(ctx, who.Name, clientAddr, hash)
}

// openWithLink signs in with linkSecret, the secret of the sign-in link, as the bootstrap operator, and returns the secret of the new
// session. The link can be used only once. After that, openWithLink returns errSignedOut.
func (s *sessions) openWithLink(ctx context.Context, clientAddr netip.Addr, linkSecret string) (secret string, err error) {
	s.linkMu.Lock()
	defer s.linkMu.Unlock()
	if s.link == "" || subtle.ConstantTimeCompare([]byte(linkSecret), []byte(s.link)) == 0 {
		return "", errSignedOut
	}
	if secret, err = s.openSession(ctx, bootstrapName, clientAddr, s.adminHash); err == nil {
		s.link = ""
	}
	return secret, err
}

// openSession stores a new session of the operator token with this hash and returns the secret of the session. actor is the owner of the
// token, and clientAddr is the actor's address.
func (s *sessions) openSession(ctx context.Context, actor string, clientAddr netip.Addr, tokenHash []byte) (secret string, err error) {
	secret = rand.Text() + rand.Text()
	return secret, s.ledger.OpenSession(ctx, actor, clientAddr.String(), hashToken(secret), tokenHash, sessionLife)
}

// tokenOwner returns the operator that owns the token with the hash tokenHash. If there is no such token, or the token
// belongs to a device, it returns errSignedOut.
func (s *sessions) tokenOwner(ctx context.Context, tokenHash []byte) (api.Operator, error) {
	if tokenHash == nil {
		return api.Operator{}, errSignedOut
	}
	if s.adminHash != nil && subtle.ConstantTimeCompare(tokenHash, s.adminHash) == 1 {
		return api.Operator{Name: bootstrapName, Role: "admin"}, nil
	}
	t, err := s.ledger.TokenByHash(ctx, tokenHash)
	switch {
	case errors.Is(err, errNotFound) || err == nil && t.Device != "":
		return api.Operator{}, errSignedOut
	case err != nil:
		return api.Operator{}, err
	}
	return api.Operator{Name: t.Name, Role: t.Role, Token: t.ID}, nil
}

// sessionOperator returns the operator that is signed in with this secret. If there is no such session, it returns errSignedOut.
func (s *sessions) sessionOperator(ctx context.Context, secret string) (api.Operator, error) {
	token, err := s.ledger.Session(ctx, hashToken(secret))
	if errors.Is(err, errNotFound) {
		return api.Operator{}, errSignedOut
	}
	if err != nil {
		return api.Operator{}, err
	}
	return s.tokenOwner(ctx, token)
}

// recentlyCheckedOperator returns the operator that is signed in with this secret, for pages that stay open. The answer
// may be up to sessionCheckLifetime old.
func (s *sessions) recentlyCheckedOperator(ctx context.Context, secret string) (api.Operator, error) {
	key := sha256.Sum256([]byte(secret))
	if known, ok := s.recentChecks.Load(key); ok {
		if c, ok := known.(checkedSession); ok && s.now().Before(c.validUntil) {
			return c.operator, nil
		}
	}
	who, err := s.sessionOperator(ctx, secret)
	if errors.Is(err, errSignedOut) {
		s.recentChecks.Delete(key)
	}
	if err == nil {
		s.recentChecks.Store(key, checkedSession{who, s.now().Add(sessionCheckLifetime)})
	}
	return who, err
}

// closeSession ends the session with this secret. clientAddr is the address from which its operator signs out. If no operator is signed in
// with the session, closeSession does nothing.
func (s *sessions) closeSession(ctx context.Context, clientAddr netip.Addr, secret string) error {
	s.recentChecks.Delete(sha256.Sum256([]byte(secret)))
	who, err := s.sessionOperator(ctx, secret)
	if errors.Is(err, errSignedOut) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.ledger.CloseSession(ctx, who.Name, clientAddr.String(), hashToken(secret))
}

// authenticator signs visitors of the dashboard in and out.
type authenticator struct {
	*site

	sessions *sessions
	hasLink  bool // the command dev printed a sign-in link, used or not
}

// readVisitor returns the operator that sends a request, or errSignedOut.
func (d *authenticator) readVisitor(r *http.Request) (api.Operator, error) {
	cookie, err := r.Cookie(cookieName)
	if err != nil || cookie.Value == "" {
		return api.Operator{}, errSignedOut
	}
	who, err := d.sessions.sessionOperator(r.Context(), cookie.Value)
	who.From = d.gate.ClientAddress(r)
	return who, err
}

// requireVisitor serves the pages to visitors that are signed in, and redirects other visitors to the sign-in page.
func (d *authenticator) requireVisitor(pages http.Handler) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		who, err := d.readVisitor(r)
		switch {
		case errors.Is(err, errSignedOut) && r.Method == http.MethodGet:
			http.Redirect(rw, r, d.prefixedPath("/sign-in?next="+url.QueryEscape(r.URL.RequestURI())), http.StatusSeeOther)
		case errors.Is(err, errSignedOut):
			d.showSignIn(rw, r, http.StatusUnauthorized, signInForm{keptForm: d.keepFormInput(r), Ended: true})
		case err != nil && r.Method == http.MethodPost:
			input, _ := url.ParseQuery(d.keepFormInput(r).Input)
			d.sendError(rw, withFormInput(r, formInput{values: input}), err)
		case err != nil:
			d.sendError(rw, r, err)
		default:
			r = r.WithContext(withVisitor(r.Context(), who))
			kept := r.PostFormValue("kept")
			if input, _ := url.ParseQuery(kept); kept == "" {
				pages.ServeHTTP(rw, r)
			} else if !d.showFormAgain(rw, r, formInput{values: input}) { // a kept form is only shown, never carried out
				http.Redirect(rw, r, d.prefixedPath("/"), http.StatusSeeOther)
			}
		}
	}
}

type signInForm struct {
	keptForm // the page that follows, and the input of the form on it

	Ended  bool // a form was submitted after the session had ended
	Wrong  bool
	Link   bool          // the visitor used a link, not a token
	Dev    bool          // the command dev printed a link
	Wait   time.Duration // time until the lock-out ends
	Proxy  bool          // the lock-out is for all visitors behind a proxy that is not trusted
	Plain  bool          // plain HTTP from another machine: no browser would keep the cookie
	Failed string        // sentence about the server that does not answer, with the time and the remedy; empty if all servers answer
	Theme  string
}

// sendSignInPage answers with the page on which a visitor signs in.
func (d *authenticator) sendSignInPage(rw http.ResponseWriter, r *http.Request) {
	form := signInForm{keptForm: keptForm{Next: localPathOrRoot(r.URL.Query().Get("next"))}}
	link := r.URL.Query().Get("link")
	if !d.hasLink || link == "" || r.Method != http.MethodGet { // link previews send HEAD
		d.showSignIn(rw, r, http.StatusOK, form)
		return
	}
	if _, err := d.readVisitor(r); err == nil { // this browser has used the link before and is still signed in
		http.Redirect(rw, r, d.prefixedPath(form.Next), http.StatusSeeOther)
		return
	}
	form.Link = true
	d.startSession(rw, r, form, d.sessions.openWithLink, link)
}

// showSignIn sends the sign-in page with form and this HTTP status.
func (d *authenticator) showSignIn(rw http.ResponseWriter, r *http.Request, status int, form signInForm) {
	form.Plain = r.TLS == nil && r.Header.Get("X-Forwarded-Proto") != "https" && !isOnLoopback(r)
	form.Dev = d.hasLink
	form.Theme = chosenTheme(r)
	d.writeTemplate(rw, r, status, "sign-in", form)
}

// maxNextPath is the maximum length in bytes of the path to which a sign-in leads: a longer Location would be refused by browsers and
// proxies.
const maxNextPath = 4 << 10

// localPathOrRoot returns path if it is a path of this site with at most maxNextPath bytes, and otherwise "/".
func localPathOrRoot(path string) (localPath string) {
	unsafe := strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) // browsers remove some of these characters
	u, err := url.Parse(path)
	if err != nil || unsafe || len(path) > maxNextPath || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") {
		return "/"
	}
	return path
}

// signIn handles the submitted sign-in form: it starts a session if the token is valid.
func (d *authenticator) signIn(rw http.ResponseWriter, r *http.Request) {
	kept := keptForm{Next: localPathOrRoot(r.PostFormValue("next")), Input: r.PostFormValue("kept")}
	d.startSession(rw, r, signInForm{keptForm: kept}, d.sessions.openWithToken, strings.TrimSpace(r.PostFormValue("token")))
}

// startSession calls open with credential (a token or the secret of a link), and sends the new session to the browser in a cookie. If open
// fails, startSession shows form again. A wrong token counts as a guess by the sender's address. A wrong link does not count, because any
// web page can make a browser follow a link, and nobody can guess its 256 bits.
func (d *authenticator) startSession(
	rw http.ResponseWriter, r *http.Request, form signInForm, open func(ctx context.Context, from netip.Addr, credential string) (secret string, err error), credential string,
) {
	from := d.gate.ClientAddress(r)
	refusal := gate.Refusal{EntryPoint: gate.SignIn, From: from, Detail: "sign-in"}
	if d.gate.IsProxied(r) {
		refusal.Detail = "sign-in, through a proxy that is not trusted"
	}
	var secret string
	lockout, err := d.gate.CheckToken(r.Context(), gate.Attempt{EntryPoint: gate.SignIn, From: from, Token: credential}, func(ctx context.Context) (err error) {
		if secret, err = open(ctx, from, credential); errors.Is(err, errSignedOut) && !form.Link {
			return fmt.Errorf("%w: %w", devices.ErrUnauthenticated, err) // counts as a guess
		}
		return err
	})
	switch {
	case lockout > 0:
		refusal.Reason = gate.LockedOut
		d.gate.CountRefusal(r.Context(), refusal)
		form.Wait, form.Proxy = lockout, d.gate.IsProxied(r)
		d.showSignIn(rw, r, http.StatusTooManyRequests, form)
		return
	case errors.Is(err, errSignedOut):
		refusal.Reason = gate.Unauthenticated
		d.gate.CountRefusal(r.Context(), refusal)
		form.Wrong = true
		d.showSignIn(rw, r, http.StatusUnauthorized, form)
		return
	case err != nil:
		d.logger.ErrorContext(r.Context(), "sign-in failed", "err", err)
		form.Failed = d.outageText(r.Context(), err)
		d.showSignIn(rw, r, http.StatusServiceUnavailable, form)
		return
	}
	http.SetCookie(rw, sessionCookie(secret, int(sessionLife.Seconds())))
	if form.Input != "" { // the browser sends the kept form to its page
		http.Redirect(rw, r, d.prefixedPath(form.Next), http.StatusTemporaryRedirect)
		return
	}
	http.Redirect(rw, r, d.prefixedPath(form.Next), http.StatusSeeOther)
}

func (d *authenticator) signOut(rw http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if err := d.sessions.closeSession(r.Context(), d.gate.ClientAddress(r), cookie.Value); err != nil {
			d.sendError(rw, r, err)
			return
		}
	}
	http.SetCookie(rw, sessionCookie("", -1))
	http.Redirect(rw, r, d.prefixedPath("/sign-in"), http.StatusSeeOther)
}

// sessionCookie returns the session cookie. value is the secret of the session. The cookie is valid for maxAgeSeconds. A negative
// maxAgeSeconds deletes it.
func sessionCookie(value string, maxAgeSeconds int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAgeSeconds, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode,
	}
}

// isOnLoopback reports whether the browser addressed this machine as localhost or by a loopback address. No other site can have such a
// name.
func isOnLoopback(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.Unmap().IsLoopback()
}
