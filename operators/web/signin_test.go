package web_test

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/operators/web"
)

// postForm sends a form in the same way as a browser that already shows the page.
func (b *testReplica) postForm(path string, form url.Values, header map[string]string, cookies ...*http.Cookie) (status int, text string, setCookies []*http.Cookie) {
	b.Helper()
	fields := withCookies(http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, cookies)
	for name, value := range header {
		fields.Set(name, value)
	}
	a := b.Send(http.MethodPost, path, fields, form.Encode())
	return a.Status, "Location: " + a.Header.Get("Location") + "\n" + string(a.Body), a.Cookies()
}

// signIn signs in with the token and returns the session cookie.
func (b *testReplica) signIn(token string) *http.Cookie {
	b.Helper()
	status, text, cookies := b.postForm("/sign-in", url.Values{"token": {token}}, nil)
	if status != http.StatusSeeOther || len(cookies) != 1 {
		b.Fatalf("sign-in: %d %s", status, text)
	}
	return cookies[0]
}

// createToken creates an operator token with this role. It returns the token and its id.
func (b *testReplica) createToken(role string) (secret string, id int64) {
	b.Helper()
	var made struct {
		Token string `json:"token"`
		ID    int64  `json:"id"`
	}
	b.Do("POST", "/v1/tokens", map[string]any{"name": role + " of the test", "role": role}, &made)
	return made.Token, made.ID
}

func TestSignInIsNeeded(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 3)
	for _, path := range []string{"/", "/pools/p", "/batches", "/tasks", "/tasks/1", "/new-pool"} {
		status, text, header := b.getPage(path)
		if status != http.StatusSeeOther || !strings.HasPrefix(header.Get("Location"), "/sign-in?next=") || strings.Contains(text, "capacity") {
			t.Errorf("%s without a session: %d %s", path, status, text)
		}
	}
	if status, _, _ := b.getPage("/live?page=/"); status != http.StatusUnauthorized {
		t.Errorf("a stream without a session: %d", status)
	}
	if status, _, _ := b.postForm("/pools/p/resume", nil, nil); status != http.StatusUnauthorized {
		t.Errorf("an action without a session: %d", status)
	}
	if status, _, _ := b.getPage("/v1/pools"); status != http.StatusUnauthorized {
		t.Errorf("the API without a token: %d", status)
	}
	verifier, _ := b.createToken("verifier")
	var caller struct{ Token string }
	b.Do("POST", "/v1/tokens", map[string]any{"name": "a caller", "role": "caller", "pools": []string{"*"}}, &caller)
	for _, wrong := range []string{"", "nobody's", fleetToken, verifier, caller.Token} {
		if status, _, cookies := b.postForm("/sign-in", url.Values{"token": {wrong}}, nil); status != http.StatusUnauthorized || len(cookies) > 0 {
			t.Errorf("sign-in with %q: %d", wrong, status)
		}
	}
}

// TestSignInsAreEvents checks the audit log: a sign-in and a sign-out have one event each, with the operator and the address. A wrong token
// and a second sign-out have none.
func TestSignInsAreEvents(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	secret, _ := b.createToken("viewer")
	b.postForm("/sign-in", url.Values{"token": {"wrong"}}, nil)
	cookie := b.signIn(secret)
	b.postForm("/sign-out", nil, nil, cookie)
	b.postForm("/sign-out", nil, nil, cookie)
	for _, kind := range []string{"access.signed_in", "access.signed_out"} {
		var events struct {
			Events []struct{ Actor, Detail string }
		}
		b.Do("GET", "/v1/events?kind="+kind+"&actor=viewer+of+the+test", nil, &events)
		if len(events.Events) != 1 || events.Events[0].Detail != "from=127.0.0.1" {
			t.Errorf("%s: %v", kind, events)
		}
	}
}

// TestAFormCannotMakeALongLocation checks forms with 70,000 characters in a field that becomes a part of the header Location.
func TestAFormCannotMakeALongLocation(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	long := strings.Repeat("a", 70_000)
	admin := b.signIn(adminToken)
	for field, value := range map[string]string{"device": "@" + long, "pool": long, "kind": long, "error": long} {
		status, text, _ := b.postForm("/retry-tasks", url.Values{field: {value}}, nil, admin)
		if status/100 != 4 || !strings.Contains(text, field) || !strings.Contains(text, "at most") && !strings.Contains(text, "&lt;=") {
			t.Errorf("%s of 70,000 characters: %d %.2000s", field, status, text)
		}
	}
	if status, text, _ := b.postForm("/sign-in", url.Values{"token": {adminToken}, "next": {"/" + long}}, nil); status != http.StatusSeeOther || !strings.Contains(text, "Location: /\n") {
		t.Errorf("a next page of 70,000 characters: %d %.300s", status, text)
	}
}

func TestSessionEnds(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	secret, id := b.createToken("viewer")
	cookie := b.signIn(secret)
	if !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/" || cookie.Domain != "" || !strings.HasPrefix(cookie.Name, "__Host-") {
		t.Errorf("cookie: %v", cookie)
	}
	if strings.Contains(cookie.Value, secret) {
		t.Error("the token is in the cookie")
	}
	if status, text, _ := b.getPage("/", cookie); status != http.StatusOK || !strings.Contains(text, "viewer of the test") {
		t.Fatalf("with a session: %d %s", status, text)
	}
	b.postForm("/sign-out", nil, nil, cookie)
	if status, _, _ := b.getPage("/", cookie); status != http.StatusSeeOther {
		t.Errorf("after signing out: %d", status)
	}
	cookie = b.signIn(secret)
	b.Do("DELETE", "/v1/tokens/"+itoa(id), nil, nil)
	if status, _, _ := b.getPage("/", cookie); status != http.StatusSeeOther {
		t.Errorf("after the token was revoked: %d", status)
	}
}

func TestRolesHold(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 3, "d-1")
	granted := b.ReportUntilGranted("d-1")
	viewer, _ := b.createToken("viewer")
	operator, _ := b.createToken("operator")
	asViewer, asOperator, asAdmin := b.signIn(viewer), b.signIn(operator), b.signIn(adminToken)
	release := "/pools/p/slots/" + itoa(int64(granted.Slot)) + "/release"
	for _, c := range []struct {
		path string
		form url.Values
		who  *http.Cookie
	}{
		{"/pools/p/pause", url.Values{"reason": {"x"}}, asViewer},
		{"/pools/p/pause", url.Values{"reason": {"x"}}, asOperator},
		{"/pools/p/edit", url.Values{"capacity": {"1"}, "lease": {"5m"}}, asOperator},
		{release, url.Values{"reason": {"x"}, "token": {itoa(granted.Token)}}, asOperator},
		{"/batches/1/cancel", nil, asViewer},
		{"/tasks/1/cancel", nil, asViewer},
		{"/cancel-tasks", url.Values{"pool": {"p"}}, asViewer},
		{"/new-batch", url.Values{"pool": {"p"}, "devices": {"d-2"}, "do": {"create"}}, asViewer},
	} {
		if status, text, _ := b.postForm(c.path, c.form, nil, c.who); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", c.path, status, text)
		}
	}
	if _, text, _ := b.getPage("/pools/p", asViewer); strings.Contains(text, "Resize") || strings.Contains(text, release) {
		t.Error("a viewer is offered what only an admin may")
	}
	if _, text, _ := b.getPage("/pools/p", asAdmin); !strings.Contains(text, "Resize") || !strings.Contains(text, release) {
		t.Error("an admin is not offered what they may")
	}
	var events struct {
		Events []struct{ Kind, Actor, Detail string }
	}
	b.Do("GET", "/v1/events?kind=pool.changed", nil, &events)
	if len(events.Events) != 0 {
		t.Errorf("changes: %v", events)
	}
	b.Do("GET", "/v1/events?kind=access.refused&actor=viewer+of+the+test", nil, &events)
	if len(events.Events) != 1 || !strings.Contains(events.Events[0].Detail, "at=api reason=forbidden from=127.0.0.1") {
		t.Errorf("the log of what the viewer was refused: %v", events)
	}
	if status, text, _ := b.postForm("/pools/p/pause", url.Values{"reason": {"because"}}, nil, asAdmin); status != http.StatusSeeOther {
		t.Fatalf("an admin pauses: %d %s", status, text)
	}
	b.Do("GET", "/v1/events?kind=pool.changed", nil, &events)
	if len(events.Events) != 1 || events.Events[0].Actor != "bootstrap" {
		t.Errorf("the log of a pause: %v", events)
	}
}

func TestReadOnlyPagesChangeNothing(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(o *web.Options) { o.ReadOnly = true })
	b.createPool("p", 3)
	if status, _, _ := b.postForm("/pools/p/pause", url.Values{"reason": {"x"}}, nil); status != http.StatusForbidden {
		t.Errorf("paused in a read-only dashboard: %d", status)
	}
	if _, text, _ := b.getPage("/pools/p"); strings.Contains(text, "Resize") {
		t.Error("a read-only dashboard offers changes")
	}
	if _, text, _ := b.getPage("/new-batch"); !strings.Contains(text, "nobody can create batches here") {
		t.Error("a form that is not there does not say why")
	}
}

// TestGuessingIsSeen checks an address from which operator tokens are guessed: the guessing is stopped, and
// operators see the address.
func TestGuessingIsSeen(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 1) // uses a valid token from the same address, which keeps working below
	for range 12 {
		b.postForm("/sign-in", url.Values{"token": {"wrong"}}, nil)
	}
	var events struct {
		Events []struct{ Actor, Detail string }
	}
	b.Do("GET", "/v1/events?kind=access.refused&order=oldest", nil, &events)
	var details []string
	for _, e := range events.Events {
		details = append(details, e.Actor+" "+e.Detail)
	}
	want := []string{
		"nobody at=sign_in reason=unauthenticated from=127.0.0.1 left_out=0 what=sign-in",
		"nobody at=sign_in reason=locked_out from=127.0.0.1 left_out=0 what=too many wrong tokens",
	}
	if !slices.Equal(details, want) {
		t.Errorf("events %q, want %q", details, want)
	}
}

// TestGuessingBehindAProxy checks a client that guesses tokens behind a trusted proxy. It does not lock out other
// clients of the proxy, and it cannot avoid its lockout by sending other addresses in the header.
func TestGuessingBehindAProxy(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t, func(o *web.Options) {
		events, _ := o.Ledger.(gate.Ledger)
		o.Gate = gate.New(gate.Options{Log: o.Logger, Ledger: events, Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	})
	tries := func(token, forwarded string) (status int, text string) {
		status, text, _ = b.postForm("/sign-in", url.Values{"token": {token}}, map[string]string{"X-Forwarded-For": forwarded})
		return status, text
	}
	for i := range 10 {
		if status, _ := tries("wrong", "203.0.113."+itoa(int64(i))+", 198.51.100.1"); status != http.StatusUnauthorized {
			t.Fatalf("a wrong token: %d", status)
		}
	}
	if status, text := tries(adminToken, "203.0.113.99, 198.51.100.1"); status != http.StatusTooManyRequests || !strings.Contains(text, "were sent from your address") {
		t.Errorf("the guesser: %d", status)
	}
	if status, _ := tries(adminToken, "198.51.100.2"); status != http.StatusSeeOther {
		t.Errorf("somebody else behind the proxy: %d", status)
	}
}

// TestGuessingIsLockedOut checks clients behind a proxy that is not trusted: all of them count as one
// address, which is locked out after ten wrong tokens. The page explains this.
func TestGuessingIsLockedOut(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	for i := range 12 {
		token := []string{"wrong", adminToken}[i/11] // the last token is correct
		status, text, _ := b.postForm("/sign-in", url.Values{"token": {token}}, map[string]string{"X-Forwarded-For": "198.51.100." + itoa(int64(i))})
		if locked := i >= 10; locked != (status == http.StatusTooManyRequests) || locked != strings.Contains(text, "DISPATCHER_TRUSTED_PROXIES") || locked != strings.Contains(text, "Too many wrong tokens") {
			t.Errorf("try %d: %d", i, status)
		}
	}
}

// TestOtherSitesAreRefused checks forms that the page of another site makes a browser send: they are refused.
func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	for _, header := range []map[string]string{
		{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
	} {
		if status, _, _ := b.postForm("/pools/p/pause", url.Values{"reason": {"x"}}, header); status != http.StatusForbidden {
			t.Errorf("%v: %d", header, status)
		}
	}
	_, _, header := b.getPage("/pools/p")
	expectContains(t, header.Get("Content-Security-Policy"), "default-src 'none'", "frame-ancestors 'none'", "script-src 'self';", "style-src 'self';")
	if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers: %v", header)
	}
}

func TestLinksHaveThePrefix(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(o *web.Options) { o.Prefix = "/fleet" })
	b.createPool("p", 3)
	for _, path := range []string{"/fleet/pools/p", "/pools/p"} {
		status, text, _ := b.getPage(path)
		if status != http.StatusOK {
			t.Fatalf("%s: %d", path, status)
		}
		expectContains(t, text, `href="/fleet/batches"`, `src="/fleet/assets/live.js"`, `data-live="/fleet/live"`, `data-page="/pools/p"`)
		if strings.Contains(text, `href="/b`) || strings.Contains(text, `href="/t`) {
			t.Errorf("a link without the prefix: %s", text)
		}
	}
	if status, _, header := b.getPage("/fleet"); status != http.StatusMovedPermanently || header.Get("Location") != "/fleet/" {
		t.Errorf("/fleet: %d %v", status, header)
	}
	if status, _, _ := b.getPage("/fleet/assets/style.css"); status != http.StatusOK {
		t.Errorf("the style: %d", status)
	}
}

// TestSignInInABrowser signs in with a browser: first with a wrong token, then with the right one. A page stays
// open, and then the session ends.
func TestSignInInABrowser(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 3, "d-1")
	secret, id := b.createToken("viewer")
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.checkScreen("sign-in")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#token"), "wrong"))
	tab.click("button.primary")
	tab.waitForJS(`document.querySelector(".problem").textContent.includes("No operator has this token")`)
	tab.expectMessage("401")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#token"), secret))
	tab.click("button.primary")
	tab.waitForJS(`location.pathname === "/pools/p" && document.querySelectorAll(".grid .cell").length === 3`)
	b.ReportUntilGranted("d-1")
	tab.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 1`)
	if strings.Contains(tab.elementText("main"), "Release") {
		t.Error("a viewer is offered a release")
	}
	b.Do("DELETE", "/v1/tokens/"+itoa(id), nil, nil)
	tab.waitForJS(`location.pathname === "/sign-in"`)
}

// TestSignInLeadsToNoOtherSite checks that the sign-in leads only to pages of this dashboard, in whichever way a
// browser parses the address.
func TestSignInLeadsToNoOtherSite(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for next, want := range map[string]string{
		"/pools/p?x=1": "/pools/p?x=1", "/\t/host": "/", "/\n/host": "/", "/\r/host": "/", "//host": "/", `/\host`: "/", "https://host/": "/",
		"/ /host": "/", "host": "/", "": "/", "/\x00/host": "/", "\t//host": "/",
	} {
		client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		response, err := client.PostForm(b.URL+"/sign-in", url.Values{"token": {adminToken}, "next": {next}})
		b.Must(err)
		response.Body.Close()
		if got := response.Header.Get("Location"); response.StatusCode != http.StatusSeeOther || got != want {
			t.Errorf("next %q: %d to %q, want %q", next, response.StatusCode, got, want)
		}
		// Only the sign-in page is checked, because a sign-in link redirects without a form.
		if _, text, _ := b.getPage("/sign-in?next=" + url.QueryEscape(next)); !strings.Contains(text, `name="next" value="`+want+`"`) {
			t.Errorf("next %q: the page does not lead to %q", next, want)
		}
	}
}

// TestPathsAreNotRedirected checks the API's promise that paths are not redirected. It must also hold with the
// dashboard in front of the API.
func TestPathsAreNotRedirected(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, path := range []string{"//", "//pools", "/pools//p", "/v1//pools", "/v1/../v1/pools", "/pools/../tasks", "/./tasks", "/assets/../tasks"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL, nil)
		b.Must(err)
		r.URL.Path = path
		response, err := http.DefaultTransport.RoundTrip(r)
		b.Must(err)
		response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}
