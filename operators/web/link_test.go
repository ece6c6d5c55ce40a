package web_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators/web"
)

const linkSecret = "secret-of-the-link"

func withLink(o *web.Options) { o.Link = linkSecret }

// TestALinkSignsInOnce checks the sign-in link that dev prints. It works once. The browser that used it stays
// signed in, and another browser gets instructions.
func TestALinkSignsInOnce(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t, withLink)
	const path = "/sign-in?link=" + linkSecret
	b.Send(http.MethodHead, path, nil, nil)
	status, _, header := b.getPage(path)
	cookies := (&http.Response{Header: header}).Cookies()
	if status != http.StatusSeeOther || header.Get("Location") != "/" || len(cookies) != 1 {
		t.Fatalf("the link: %d %v", status, header)
	}
	if status, text, _ := b.getPage("/", cookies[0]); status != http.StatusOK || !strings.Contains(text, "bootstrap") {
		t.Errorf("with its session: %d", status)
	}
	if status, _, header := b.getPage(path, cookies[0]); status != http.StatusSeeOther || header.Get("Location") != "/" {
		t.Errorf("again, from the same browser: %d %v", status, header)
	}
	status, text, header := b.getPage(path)
	if status != http.StatusUnauthorized || header.Get("Set-Cookie") != "" || !strings.Contains(text, "This link was already used") {
		t.Errorf("again, from another one: %d %v", status, header)
	}
}

// TestAWrongLinkSignsNobodyInAndIsNoGuess checks wrong sign-in links: they do not count as guesses and lock nobody
// out, because any page can make a browser follow links.
func TestAWrongLinkSignsNobodyInAndIsNoGuess(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t, withLink)
	for range 20 {
		if status, text, header := b.getPage("/sign-in?link=" + adminToken); status != http.StatusUnauthorized || header.Get("Set-Cookie") != "" ||
			!strings.Contains(text, "This link was already used") {
			t.Fatalf("the admin's token as a link: %d %v", status, header)
		}
	}
	if status, _, header := b.getPage("/sign-in?link=" + linkSecret); status != http.StatusSeeOther || header.Get("Set-Cookie") == "" {
		t.Errorf("the right link after wrong ones: %d", status)
	}
	b.signIn(adminToken)
}

// TestWithoutALinkTheParameterIsIgnored checks the program serve, which has no sign-in links: it ignores the
// parameter of a link, shows the usual sign-in page and records nothing.
func TestWithoutALinkTheParameterIsIgnored(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	for _, link := range []string{linkSecret, adminToken, "x"} {
		status, text, header := b.getPage("/sign-in?link=" + link)
		if status != http.StatusOK || header.Get("Set-Cookie") != "" || strings.Contains(text, "This link was already used") {
			t.Errorf("link %q: %d %v", link, status, header)
		}
	}
	var refused struct{ Events []struct{ Detail string } }
	b.Do("GET", "/v1/events?kind=access.refused", nil, &refused)
	if len(refused.Events) != 0 {
		t.Errorf("refusals: %v", refused.Events)
	}
}

// TestNobodyOfThisMachineIsTrusted checks a request from the server's own machine: it has no rights, whichever host
// name it uses, because any site can have a name that resolves to this machine.
func TestNobodyOfThisMachineIsTrusted(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t, withLink)
	for _, host := range []string{"", "localhost", "127.0.0.1", "a127.0.0.1b", "a127.0.0.1b:80", "[::1]", "evil.example"} {
		r := b.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		if a := b.DoRequest(r); a.Status != http.StatusSeeOther {
			t.Errorf("asked as %q: %d", host, a.Status)
		}
	}
}

// TestPlainHTTPIsSaid checks the warning about plain HTTP. The page must show it if the browser does not keep the
// session cookie. Browsers keep the cookie only if the host name is exactly a name of the loopback.
func TestPlainHTTPIsSaid(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	for host, plain := range map[string]bool{
		"localhost": false, "localhost:80": false, "127.0.0.1:80": false, "127.9.9.9": false, "[::1]": false, "[::1]:80": false,
		"a127.0.0.1b": true, "a127.0.0.1b:80": true, "[::1]x": true, "[::1].evil.example": true, "localhost.evil.example": true,
		"10.0.0.1:80": true, "dispatcher.example": true,
	} {
		r := b.NewRequest(http.MethodGet, "/sign-in", nil)
		r.Host = host
		if strings.Contains(string(b.DoRequest(r).Body), "plain HTTP") != plain {
			t.Errorf("asked as %q: plain is not %v", host, plain)
		}
	}
}
