package web_test

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/fleetslots/dispatcher/operators/web"
)

// crossSiteRequest is a request that the page of another site can make a visitor's browser send to the dashboard.
type crossSiteRequest struct {
	method, path string
	header       map[string]string
	body         string
}

func crossSiteRequests() map[string]crossSiteRequest {
	form := url.Values{"token": {"wrong"}}.Encode()
	crossSite := map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "cross-site"}
	return map[string]crossSiteRequest{
		"an image of a link":                 {"GET", "/sign-in?link=x", nil, ""},
		"an image with a token":              {"GET", "/sign-in?token=wrong", nil, ""},
		"a form":                             {"POST", "/sign-in", crossSite, form},
		"a form over plain HTTP":             {"POST", "/sign-in", map[string]string{"Content-Type": crossSite["Content-Type"], "Origin": "http://evil.example"}, form},
		"a form of a page in a sandbox":      {"POST", "/sign-in", map[string]string{"Content-Type": crossSite["Content-Type"], "Origin": "null"}, form},
		"a form of a neighbour":              {"POST", "/sign-in", map[string]string{"Content-Type": crossSite["Content-Type"], "Sec-Fetch-Site": "same-site"}, form},
		"a form to the API":                  {"POST", "/v1/tokens", crossSite, form},
		"a form to the reports":              {"POST", "/v1/devices/d-1/report", crossSite, form},
		"an image of a page, a wrong cookie": {"GET", "/pools/p", map[string]string{"Cookie": "__Host-dispatcher=wrong"}, ""},
		"an image of the API":                {"GET", "/v1/pools", map[string]string{"Cookie": "__Host-dispatcher=wrong"}, ""},
		"an address with a password":         {"GET", "/v1/pools", map[string]string{"Authorization": "Basic d3Jvbmc6d3Jvbmc="}, ""},
		"the preflight of a script":          {"OPTIONS", "/v1/pools", map[string]string{"Origin": "http://evil.example", "Access-Control-Request-Headers": "authorization"}, ""},
		"a stream":                           {"GET", "/live?page=/", map[string]string{"Accept": "text/event-stream", "Cookie": "__Host-dispatcher=wrong"}, ""},
	}
}

func (f crossSiteRequest) sendTo(b *testReplica) int {
	b.Helper()
	header := http.Header{}
	for name, value := range f.header {
		header.Set(name, value)
	}
	return b.Send(f.method, f.path, header, f.body).Status
}

// TestForeignPagesLockNobodyOut checks the page of another site: it cannot lock its visitor out of the dashboard,
// whatever request it makes the browser send.
func TestForeignPagesLockNobodyOut(t *testing.T) {
	t.Parallel()
	for mode, change := range map[string]func(*web.Options){"serve": func(*web.Options) {}, "dev": withLink} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := startSignedOut(t, change)
			b.createPool("p", 3)
			for name, f := range crossSiteRequests() {
				for range 11 {
					if status := f.sendTo(b); status == http.StatusTooManyRequests {
						t.Fatalf("%s locks its reader out", name)
					}
				}
				if status, _, _ := b.postForm("/sign-in", url.Values{"token": {adminToken}}, nil); status != http.StatusSeeOther {
					t.Fatalf("the right token after %s: %d", name, status)
				}
			}
			for range 10 {
				b.postForm("/sign-in", url.Values{"token": {"wrong"}}, map[string]string{"Sec-Fetch-Site": "same-origin"})
			}
			if status, _, _ := b.postForm("/sign-in", url.Values{"token": {adminToken}}, nil); status != http.StatusTooManyRequests {
				t.Errorf("after ten guesses on the page itself: %d", status)
			}
		})
	}
}
