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

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// answerLimit is the promised time limit for answers to people, whatever Redis and Postgres do.
const answerLimit = 2 * time.Second

// explanationPaths and pagePaths return the paths that are requested during each fault. With -short, only the pages
// that need Redis and one page that needs only Postgres are requested.
func explanationPaths() []string {
	return []string{"/v1/pools/p/waiting", "/v1/batches/3/waiting", "/v1/pools/p/waiting/tasks", "/v1/tasks/50/why"}
}

func pagePaths() []string {
	return []string{
		"/", "/pools/p", "/pools/p/waiting", "/batches/3", "/batches/3/waiting", "/tasks/50", "/devices/d-001", "/system", "/tasks",
		"/?sort=name", "/pools/p/slots/0", "/pools/p/edit", "/batches", "/batches/3/edit", "/devices", "/limits", "/limits/sms",
		"/find?q=d-001", "/activity", "/new-batch", "/new-pool", "/pools/p?range=24h",
	}
}

const shortPageCount = 9

// queriedDispatcher is a dispatcher that the test queries while its servers have faults.
type queriedDispatcher struct {
	*instance
	redis, postgres *servers.Proxy
	cookie          *http.Cookie
}

// newQueriedDispatcher starts a dispatcher with 80 waiting tasks. Nearly every device has its own set of batches,
// so that Redis is asked about each device. Policies are read as well.
func newQueriedDispatcher(t *testing.T) *queriedDispatcher {
	t.Helper()
	server, dsn := sharedPostgres.Server(t), sharedPostgres.NewLedger(t)
	a := &queriedDispatcher{redis: servers.NewProxy(t, servers.StartRedis(t).Addr), postgres: servers.NewProxy(t, server.Addr())}
	a.instance, _ = startServing(t, serveConfig(t, strings.ReplaceAll(dsn, server.Addr(), a.postgres.Addr), "redis://"+a.redis.Addr))
	const limits = `"limits":[{"name":"each","per":"%s","algorithm":"fixed","per_ms":3600000,"max":3}]`
	a.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":2,`+fmt.Sprintf(limits, "device")+`}`)
	a.callOperator(t, http.MethodPut, "/v1/limits/sms", `{`+fmt.Sprintf(limits, "facts.n")+`}`)
	for bit := range 5 {
		var list []string
		for d := range 32 {
			if d>>bit&1 == 1 {
				list = append(list, fmt.Sprintf(`"d-%03d"`, d))
			}
		}
		a.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":[`+strings.Join(list, ",")+`]}`)
	}
	for _, device := range []string{"d-001", "d-002", "d-003"} {
		a.sendReport(t, device, `{"id":"1"}`)
	}
	a.cookie = signIn(t, a.instance)
	return a
}

// timedAnswer is the response to one request, with its duration.
type timedAnswer struct {
	path   string
	status int
	body   string
	took   time.Duration
}

func (a *queriedDispatcher) getTimed(ctx context.Context, path string) (timedAnswer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return timedAnswer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.AddCookie(a.cookie)
	began := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return timedAnswer{}, fmt.Errorf("%s: %w", path, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return timedAnswer{path, response.StatusCode, string(text), time.Since(began)}, err
}

// getAll requests all paths, three at a time. It returns the answers. stall is the longest time during the requests
// in which the machine did not run the test.
func (a *queriedDispatcher) getAll(t *testing.T, paths []string) (answers []timedAnswer, stall time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	measured := make(chan time.Duration, 1)
	go func() { measured <- measureStall(ctx) }()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(3)
	for _, path := range paths {
		group.Go(func() error {
			one, err := a.getTimed(ctx, path)
			mu.Lock()
			defer mu.Unlock()
			answers = append(answers, one)
			return err
		})
	}
	err := group.Wait()
	cancel()
	must.Succeed(t, err)
	slices.SortFunc(answers, func(a, b timedAnswer) int { return cmp.Compare(b.took, a.took) })
	return answers, <-measured
}

// measureStall measures how late ticks of a timer are until ctx ends. It returns the longest delay.
func measureStall(ctx context.Context) (longest time.Duration) {
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

// waitUntilReady waits until the replica can reach its servers again.
func (a *queriedDispatcher) waitUntilReady(t *testing.T) {
	t.Helper()
	await.True(t, "both servers", func() bool {
		_, body := a.call(t, http.MethodGet, "/readyz", "", "")
		return strings.Contains(string(body), `"redis":"ok"`) && strings.Contains(string(body), `"postgres":"ok"`)
	})
}

// TestPeopleAreAnsweredInTime checks explanations (`why`) and pages while Redis or Postgres is stopped, hangs, or is
// slow: 300 ms for each command of Redis, 100 ms or 300 ms for each round trip to Postgres. Each request must be
// answered within 2 s. Without Redis, all answers must be complete. If Postgres is missing or too slow, the answer must
// say so, since when, and what to do.
//
//nolint:tparallel // one fault at a time
func TestPeopleAreAnsweredInTime(t *testing.T) {
	t.Parallel()
	a := newQueriedDispatcher(t)
	shown := pagePaths()
	if testing.Short() {
		shown = shown[:shortPageCount]
	}
	paths := append(explanationPaths(), shown...)
	for _, fault := range []struct {
		name       string
		begin, end func()
		postgres   bool // a request may remain unanswered because of this fault
	}{
		{"redis stopped", a.redis.Cut, a.redis.EndCut, false},
		{"redis hangs", a.redis.HoldReplies, a.redis.ReleaseReplies, false},
		{"redis slow", func() { a.redis.Delay(150 * time.Millisecond) }, func() { a.redis.Delay(0) }, false},
		{"postgres 100 ms", func() { a.postgres.Delay(50 * time.Millisecond) }, func() { a.postgres.Delay(0) }, true},
		{"postgres 300 ms", func() { a.postgres.Delay(150 * time.Millisecond) }, func() { a.postgres.Delay(0) }, true},
		{"postgres stopped", a.postgres.Cut, a.postgres.EndCut, true},
		{"postgres hangs", a.postgres.HoldReplies, a.postgres.ReleaseReplies, true},
	} {
		t.Run(fault.name, func(t *testing.T) {
			a.waitUntilReady(t)
			fault.begin()
			defer fault.end()
			answers, still := a.getAll(t, paths)
			for _, one := range answers {
				t.Logf("%5.2f s %d %s", one.took.Seconds(), one.status, one.path)
				if one.took > answerLimit+still {
					t.Errorf("%s: answered after %s, and the machine stood still for %s at most", one.path, one.took, still)
				}
				a.checkAnswer(t, one, fault.postgres)
			}
			if !fault.postgres {
				a.expectComplete(t, answers, fault.end)
			}
		})
	}
}

// checkAnswer checks one answer that was given during a fault. postgres says whether Postgres had the fault.
func (a *queriedDispatcher) checkAnswer(t *testing.T, one timedAnswer, postgres bool) {
	t.Helper()
	switch {
	case one.status == http.StatusOK:
	case one.status != http.StatusServiceUnavailable:
		t.Errorf("%s: %d %s", one.path, one.status, problemText(one.body))
	case strings.HasPrefix(one.path, "/v1/"):
		if !strings.Contains(one.body, `"server":"postgres"`) {
			t.Errorf("%s: %s does not name Postgres", one.path, one.body)
		}
	case postgres:
		for _, part := range []string{"Postgres", " since ", "dispatcher doctor"} {
			if !strings.Contains(one.body, part) {
				t.Errorf("%s: %q is missing in %s", one.path, part, problemText(one.body))
			}
		}
	}
}

// idleAnswerTime is the longest time of an answer on an idle machine while Redis and Postgres work.
const idleAnswerTime = 250 * time.Millisecond

// expectComplete checks that all requests were answered completely without Redis. It repeats the requests that were
// late, because a busy machine is late as well. It then calls end, which ends the fault. If a request is late even
// after that, the missing Redis is not the cause.
func (a *queriedDispatcher) expectComplete(t *testing.T, answers []timedAnswer, end func()) {
	t.Helper()
	missing := func() (list []timedAnswer) {
		for _, one := range answers {
			if one.status != http.StatusOK {
				list = append(list, one)
			}
		}
		return list
	}
	for tries := 0; len(missing()) > 0 && tries < 3; tries++ {
		answers = a.repeatRequests(t, missing())
	}
	answers = missing()
	end()
	a.waitUntilReady(t)
	for i, now := range a.repeatRequests(t, answers) {
		if now.status == http.StatusOK && now.took <= idleAnswerTime {
			t.Errorf("%s: %d during the fault: %s", now.path, answers[i].status, problemText(answers[i].body))
		} else {
			t.Logf("%s: %d after %s without a fault: the machine is busy", now.path, now.status, now.took)
		}
	}
}

// repeatRequests sends the requests again, one after the other.
func (a *queriedDispatcher) repeatRequests(t *testing.T, list []timedAnswer) (answers []timedAnswer) {
	t.Helper()
	for _, one := range list {
		one, err := a.getTimed(t.Context(), one.path)
		must.Succeed(t, err)
		answers = append(answers, one)
	}
	return answers
}

// problemText returns the text of the error that a page shows. If the page shows no error, it returns the whole
// text.
func problemText(text string) string {
	if _, found, ok := strings.Cut(text, `<p class="problem" role="alert">`); ok {
		text, _, _ = strings.Cut(found, "</p>")
	}
	return text
}
