package web_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/web"
)

// outageBegan is the start of the outage that these tests simulate.
var outageBegan = time.Date(2026, 3, 1, 3, 4, 5, 0, time.UTC) //nolint:gochecknoglobals // a constant

// withDependency makes the health checks of a replica report this state of a server (Redis or Postgres).
func withDependency(d api.Dependency) func(o *web.Options) {
	d.Since = outageBegan
	return func(o *web.Options) {
		o.System.Mode = "production"
		o.System.Checks = func(context.Context) []api.Dependency { return []api.Dependency{d} }
	}
}

// TestAPoolSaysThatRedisIsGone checks the page of a pool while Redis does not answer or is slow: it shows this,
// since when, and what to do.
func TestAPoolSaysThatRedisIsGone(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		found api.Dependency
		want  []string
	}{
		{api.Dependency{Name: "redis", State: "degraded"}, []string{"Redis does not answer since", "nothing new is granted", "dispatcher doctor"}},
		{api.Dependency{Name: "redis", State: "ok", Slow: true}, []string{"Redis answers slowly since", "parts of this page may be missing", "dispatcher doctor"}},
	} {
		b := startEmbedded(t, withDependency(one.found))
		b.createPool("p", 3, "d-1", "d-2")
		b.ReportUntilGranted("d-1")
		for _, path := range []string{"/", "/pools/p"} {
			status, text, _ := b.getPage(path)
			if status != http.StatusOK {
				t.Errorf("%s: %d", path, status)
			}
			expectContains(t, text, append(one.want, "2026-03-01 03:04:05Z")...)
		}
		tab := openTab(t)
		tab.open(b.URL + "/pools/p")
		tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
		tab.checkScreen("pool-" + strings.Fields(one.want[0])[1] + "-redis")
	}
}

// TestTheRedBarSaysSinceWhen checks the red bar of an open page during an outage: it names the server, since when
// the server does not answer, and what to do. Further messages about the same outage do not change its start.
func TestTheRedBarSaysSinceWhen(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withDependency(api.Dependency{Name: "postgres", State: "failed"}))
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	evalJS[bool](tab, `(() => { window.said = new Set(); const stale = document.getElementById("stale");
		new MutationObserver(() => { if (stale.textContent) { window.began = window.began || Date.now(); window.said.add(stale.textContent); } }).observe(stale, { childList: true }); return true; })()`)
	b.store.logFails.Store(true)
	tab.waitForJS(`window.began && Date.now() - window.began > 3500`) // a message arrives at least every 2 s
	said := evalJS[[]string](tab, `[...window.said]`)
	if len(said) != 1 || !strings.HasPrefix(said[0], "Not up to date since ") {
		t.Fatalf("the bar said %q", said)
	}
	expectContains(t, said[0], "Postgres does not answer since 2026-03-01 03:04:05Z", "Nothing is granted", "dispatcher doctor")
	tab.checkScreen("red-bar")
	b.store.logFails.Store(false)
	tab.waitForJS(`document.getElementById("stale").hidden`)
}

// TestALatePageComesByItself checks a page that cannot be read in time: it shows this, and its content appears by
// itself as soon as it can be read.
func TestALatePageComesByItself(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, withDependency(api.Dependency{Name: "postgres", State: "ok", Slow: true}), func(o *web.Options) { o.PageTimeout = time.Second })
	b.createPool("p", 3)
	b.store.countHangs.Store(true)
	status, text, _ := b.getPage("/tasks")
	if status != http.StatusServiceUnavailable {
		t.Errorf("%d", status)
	}
	expectContains(t, text, "Postgres answers slowly since 2026-03-01 03:04:05Z", "dispatcher doctor", `data-page="/tasks"`, `<noscript><meta http-equiv="refresh" content="10"></noscript>`, "tries again every 10 seconds")
	tab := openTab(t)
	tab.open(b.URL + "/tasks")
	tab.waitForJS(`document.querySelector("h1").textContent === "Service Unavailable"`)
	tab.checkScreen("late")
	b.store.countHangs.Store(false)
	tab.waitForJS(`document.querySelector("h1").textContent === "Tasks"`)
	tab.expectMessage("503")
	b.Must(b.store.Close())
	for _, send := range []func() (int, string){
		func() (int, string) { status, text, _ := b.getPage("/pools/p/edit"); return status, text },
		func() (int, string) {
			status, text, _ := b.postForm("/pools/p/edit", url.Values{"capacity": {"7"}}, nil)
			return status, text
		},
		func() (int, string) {
			status, text, _ := b.postForm("/pools/p/edit", url.Values{"kept": {"capacity=7"}}, nil)
			return status, text
		},
	} {
		status, text := send()
		_, tail, isKept := strings.Cut(text, `<form method="post" action="/pools/p/edit"`)
		retried := strings.Contains(text, `<meta http-equiv="refresh" content="10">`) && !strings.Contains(text, "<noscript>")
		if status != http.StatusServiceUnavailable || retried == isKept || isKept && !strings.Contains(tail, `name="kept" value="capacity=7"`) {
			t.Errorf("without the ledger: %d %s", status, text)
		}
	}
}
