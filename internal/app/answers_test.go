package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// answeredWithin is the promised time limit of an answer, whatever Redis and Postgres do.
const answeredWithin = 2 * time.Second

// explanations and pages return the paths that are requested during each fault. With -short, only the
// pages that need Redis and one page that needs only Postgres are requested.
func explanations() []string {
	return []string{"/v1/pools/p/waiting", "/v1/batches/3/waiting", "/v1/pools/p/waiting/tasks", "/v1/tasks/50/why"}
}

func pages() []string {
	return []string{
		"/", "/pools/p", "/pools/p/waiting", "/batches/3", "/batches/3/waiting", "/tasks/50", "/devices/d-001", "/system", "/tasks",
		"/?sort=name", "/pools/p/slots/0", "/pools/p/edit", "/batches", "/batches/3/edit", "/devices", "/limits", "/limits/sms",
		"/find?q=d-001", "/activity", "/new-batch", "/new-pool", "/pools/p?range=24h",
	}
}

const pagesInShort = 9

// asked is a dispatcher that is queried while its servers are in trouble.
type asked struct {
	*instance
	redis, postgres *servers.Proxy
	cookie          *http.Cookie
}

// newAsked creates 80 waiting tasks. Nearly every device has its own set of batches, so that Redis is
// asked about each device. The policies are read as well.
func newAsked(t *testing.T) *asked {
	t.Helper()
	server, dsn := shared.Server(t), shared.NewLedger(t)
	a := &asked{redis: servers.NewProxy(t, servers.Redis(t).Addr), postgres: servers.NewProxy(t, server.Addr())}
	a.instance, _ = startServing(t, serveConfig(t, strings.ReplaceAll(dsn, server.Addr(), a.postgres.Addr), "redis://"+a.redis.Addr))
	const limits = `"limits":[{"name":"each","per":"%s","algorithm":"fixed","per_ms":3600000,"max":3}]`
	a.operate(t, http.MethodPut, "/v1/pools/p", `{"capacity":2,`+fmt.Sprintf(limits, "device")+`}`)
	a.operate(t, http.MethodPut, "/v1/limits/sms", `{`+fmt.Sprintf(limits, "facts.n")+`}`)
	for bit := range 5 {
		var list []string
		for d := range 32 {
			if d>>bit&1 == 1 {
				list = append(list, fmt.Sprintf(`"d-%03d"`, d))
			}
		}
		a.operate(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":[`+strings.Join(list, ",")+`]}`)
	}
	for _, device := range []string{"d-001", "d-002", "d-003"} {
		a.report(t, device, `{"id":"1"}`)
	}
	a.cookie = signIn(t, a.instance)
	return a
}

// answer is the response to one request, with its duration.
type answer struct {
	path   string
	status int
	text   string
	took   time.Duration
}

func (a *asked) ask(ctx context.Context, path string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.AddCookie(a.cookie)
	began := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, fmt.Errorf("%s: %w", path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{path, response.StatusCode, string(text), time.Since(began)}, err
}

// all requests all paths, three concurrently. It returns the answers, and the longest time for which
// the machine did not run the test during the requests.
func (a *asked) all(t *testing.T, paths []string) (answers []answer, still time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	measured := make(chan time.Duration, 1)
	go func() { measured <- standstill(ctx) }()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(3)
	for _, path := range paths {
		group.Go(func() error {
			one, err := a.ask(ctx, path)
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, one)
			return err
		})
	}
	err := group.Wait()
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(answers, func(a, b answer) int { return cmp.Compare(b.took, a.took) })
	return answers, <-measured
}

// standstill returns the longest delay of a tick until ctx ends.
func standstill(ctx context.Context) (longest time.Duration) {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return longest
		case <-tick.C:
			now := time.Now()
			longest = max(longest, now.Sub(last)-every)
			last = now
		}
	}
}

// well waits until the replica reaches its servers again.
func (a *asked) well(t *testing.T) {
	t.Helper()
	eventually(t, "both servers", func() bool {
		_, body := a.call(t, http.MethodGet, "/readyz", "", "")
		return strings.Contains(string(body), `"redis":"ok"`) && strings.Contains(string(body), `"postgres":"ok"`)
	})
}

// TestPeopleAreAnsweredInTime checks that explanations and pages are answered within 2 s while Redis or
// Postgres is stopped, hangs, or is slow: 300 ms for each command of Redis, 100 ms or 300 ms for each
// round trip to Postgres. Without Redis, all requests are answered. If Postgres is missing or too slow,
// the answer says so, since when, and what to do.
//
//nolint:tparallel // one fault at a time
func TestPeopleAreAnsweredInTime(t *testing.T) {
	t.Parallel()
	a := newAsked(t)
	shown := pages()
	if testing.Short() {
		shown = shown[:pagesInShort]
	}
	paths := append(explanations(), shown...)
	for _, fault := range []struct {
		name       string
		begin, end func()
		postgres   bool // a request may remain unanswered because of this fault
	}{
		{"redis stopped", a.redis.Cut, a.redis.Heal, false},
		{"redis hangs", a.redis.HoldReplies, a.redis.ReleaseReplies, false},
		{"redis slow", func() { a.redis.Delay(150 * time.Millisecond) }, func() { a.redis.Delay(0) }, false},
		{"postgres 100 ms", func() { a.postgres.Delay(50 * time.Millisecond) }, func() { a.postgres.Delay(0) }, true},
		{"postgres 300 ms", func() { a.postgres.Delay(150 * time.Millisecond) }, func() { a.postgres.Delay(0) }, true},
		{"postgres stopped", a.postgres.Cut, a.postgres.Heal, true},
		{"postgres hangs", a.postgres.HoldReplies, a.postgres.ReleaseReplies, true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			a.well(t)
			fault.begin()
			defer fault.end()
			answers, still := a.all(t, paths)
			for _, one := range answers {
				t.Logf("%5.2f s %d %s", one.took.Seconds(), one.status, one.path)
				if one.took > answeredWithin+still {
					t.Errorf("%s: answered after %s, and the machine stood still for %s at most", one.path, one.took, still)
				}
				a.judge(t, one, fault.postgres)
			}
			if !fault.postgres {
				a.complete(t, answers, fault.end)
			}
		})
	}
}

// judge checks an answer that was given during a fault. postgres is true if Postgres had the fault.
func (a *asked) judge(t *testing.T, one answer, postgres bool) {
	t.Helper()
	switch {
	case one.status == http.StatusOK:
	case one.status != http.StatusServiceUnavailable:
		t.Errorf("%s: %d %s", one.path, one.status, problemIn(one.text))
	case strings.HasPrefix(one.path, "/v1/"):
		if !strings.Contains(one.text, `"server":"postgres"`) {
			t.Errorf("%s: %s does not name Postgres", one.path, one.text)
		}
	case postgres:
		for _, part := range []string{"Postgres", " since ", "dispatcher doctor"} {
			if !strings.Contains(one.text, part) {
				t.Errorf("%s: %q is missing in %s", one.path, part, problemIn(one.text))
			}
		}
	}
}

// quick is the longest answer time of an idle machine while Redis and Postgres work.
const quick = 250 * time.Millisecond

// complete checks that all requests were answered without Redis. It repeats the late requests, because
// a busy machine is late as well. If a request is not quick even after end has ended the fault, Redis
// is not the cause.
func (a *asked) complete(t *testing.T, answers []answer, end func()) {
	t.Helper()
	missing := func() (list []answer) {
		for _, one := range answers {
			if one.status != http.StatusOK {
				list = append(list, one)
			}
		}
		return list
	}
	for tries := 0; len(missing()) > 0 && tries < 3; tries++ {
		answers = a.again(t, missing())
	}
	answers = missing()
	end()
	a.well(t)
	for i, now := range a.again(t, answers) {
		if now.status == http.StatusOK && now.took <= quick {
			t.Errorf("%s: %d during the fault: %s", now.path, answers[i].status, problemIn(answers[i].text))
		} else {
			t.Logf("%s: %d after %s without a fault: the machine is busy", now.path, now.status, now.took)
		}
	}
}

// again repeats the requests one after the other.
func (a *asked) again(t *testing.T, list []answer) (answers []answer) {
	t.Helper()
	for _, one := range list {
		one, err := a.ask(t.Context(), one.path)
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, one)
	}
	return answers
}

// problemIn returns the text of the problem that a page shows. For any other answer it returns the
// whole text.
func problemIn(text string) string {
	if _, found, ok := strings.Cut(text, `<p class="problem" role="alert">`); ok {
		text, _, _ = strings.Cut(found, "</p>")
	}
	return text
}
