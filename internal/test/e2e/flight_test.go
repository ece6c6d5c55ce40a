package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Number of event-log positions at which each page must be compared with the API.
const (
	momentsLive  = 8
	momentsPlain = 6
	moments      = 20 // of both kinds together
	ratesFitted  = 3

	stallLimit  = 10 * time.Second // time without progress after which the fleet counts as too fast
	flightLimit = 3 * time.Minute  // time limit for the screens that are compared together
)

// TestPagesSayTheTruthInFlight compares the dashboard with the API while a fleet works on two replicas. One replica is killed and
// restarted. Each page in a browser, updated live or loaded again, must show the values that the API returns at the same position of the
// event log. The fleet does not pause for this. Values that change without an event (Redis, the passes, last-seen times) are compared with
// the range of values that their own source returned.
func TestPagesSayTheTruthInFlight(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a browser compares each page in 20 moments, which takes minutes; make test-long runs it")
	}
	const slots = 8
	x := newTruth(t, 3*slots, slots)
	again := x.tryAgainAndAgain()
	first, second := x.replicas[0], x.replicas[1]
	f := &flight{truth: x, at: first, browser: newBrowser(t), slots: slots, progress: time.Now()}
	f.plain = f.browser.tab("sign-in", "http://"+first.addr+"/sign-in")
	f.plain.signIn()
	f.plain.open("http://" + first.addr + "/new-pool") // a page that follows no events: a browser has six connections to one address
	killed := false
	f.compare(func(done float64) {
		if !killed && done > 0 {
			second.Kill()
			killed = true
		}
	}, newScreen("pools", "/", x.poolsSaid).with(x.reservedSaid), newScreen("pool", "/pools/"+pool, x.slotsSaid).with(x.latelySaid), newScreen("batch", fmt.Sprintf("/batches/%d", x.failed), x.batchSaid(x.failed)),
		newScreen("task", fmt.Sprintf("/tasks/%d", again), x.taskSaid(again)))
	if !killed {
		t.Error("the other replica was never killed")
	}
	f.compare(func(done float64) {
		if killed && done > 0 {
			second.Start()
			killed = false
		}
	}, newScreen("batches", "/batches", x.batchesSaid), newScreen("tasks", "/tasks?state=dispatched", x.tasksSaid("state=dispatched")),
		newScreen("activity", "/activity", x.activitySaid), newScreen("system", "/system", x.checksSaid).with(x.signsSaid))
	f.compare(func(float64) {}, newScreen("device", "/devices/t-1", x.deviceSaid("t-1")), newScreen("devices", "/devices", x.devicesSaid).thatStandsStill())
}

// flight compares pages while the fleet works.
type flight struct {
	*truth

	at      *replica
	browser *browser
	plain   *tab

	slots    int       // capacity of the pool
	reached  float64   // the highest share of the comparisons done so far
	progress time.Time // when reached last changed
}

// compare keeps each screen open and also loads it again, until enough moments were compared. It calls meanwhile with the share of the
// comparisons that are done.
func (f *flight) compare(meanwhile func(done float64), screens ...*screen) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), flightLimit)
	defer cancel()
	seen, turns := make(chan observation, 100), make(chan struct{}, 1)
	for _, s := range screens {
		if s.still {
			continue
		}
		one := f.browser.tab(s.name, "http://"+f.at.addr+s.path)
		defer func() { f.browser.must(one.ctx, chromedp.Navigate("about:blank")) }()
		go f.watch(ctx, one, s, seen)
	}
	go f.readAnew(ctx, screens, turns, seen)
	for done := 0.0; done < 1 && !anyWrong(screens); done = f.done(screens) {
		if ctx.Err() != nil {
			if f.t.Logf("fewer moments than wanted: this machine is too busy (%.2f)", done); done == 0 {
				f.t.Error("something was not compared at all")
			}
			break
		}
		meanwhile(done)
		f.keepPace(done)
		f.look(screens, seen)
		select {
		case turns <- struct{}{}:
		default:
		}
	}
	cancel()
	for _, s := range screens {
		f.listen(s, f.at) // after everything that was shown
		s.judge(f.experiment)
	}
}

// look asks the API about each screen, and compares the observations.
func (f *flight) look(screens []*screen, seen <-chan observation) {
	for _, s := range screens {
		f.listen(s, f.at)
	}
	for {
		select {
		case o := <-seen:
			o.screen.settle(o)
			continue
		default:
		}
		break
	}
	for _, s := range screens {
		s.settleAll()
	}
}

// keepPace reduces the capacity of the pool while the fleet does more than the comparison can follow: on a busy machine, something happens
// between any two answers.
func (f *flight) keepPace(done float64) {
	if done > f.reached {
		f.reached, f.progress = done, time.Now()
	}
	if done < f.reached { // the next screens
		f.reached = done
	}
	if f.slots > 1 && time.Since(f.progress) > stallLimit {
		f.slots, f.progress = (f.slots+1)/2, time.Now()
		f.send(http.MethodPatch, "/v1/pools/"+pool, map[string]any{"capacity": f.slots})
		f.t.Logf("%d slots from here on: this machine is busy", f.slots)
	}
}

func anyWrong(screens []*screen) bool {
	return slices.ContainsFunc(screens, func(s *screen) bool { return len(s.wrong) > 0 })
}

// done returns the smallest share of the required comparisons that is done.
func (f *flight) done(screens []*screen) float64 {
	least := 1.0
	for _, s := range screens {
		live, plain := s.ways()
		if s.still {
			live, plain = momentsLive, live+plain
		}
		least = min(least, float64(live)/momentsLive, float64(plain)/momentsPlain, float64(live+plain)/moments)
		if s.name == "pool" {
			for _, place := range []string{"pool-head/granted/min", "pool-head/taken back/min", "chart/now"} {
				least = min(least, float64(s.fitted[place])/ratesFitted)
			}
		}
	}
	return least
}

// watch sends an observation for each moment that an open page shows.
func (f *flight) watch(ctx context.Context, one *tab, s *screen, seen chan<- observation) {
	last := ""
	_ = poll(ctx, 2*look, func() bool {
		script := fmt.Sprintf(`(moment => ({ Moment: moment, Numbers: moment === %q ? {} : %s }))(document.getElementById("main").dataset.moment)`, last, numbersHere())
		o, err := chromedp.Run(within(one.ctx, ctx), chromedp.Evaluate[observation](script))
		if err == nil && o.Moment != last {
			last, o.screen, o.way = o.Moment, s, "live"
			send(ctx, seen, o)
		}
		return false
	})
}

// readAnew loads each page once a turn with the browser's fetch, and sends what it shows.
func (f *flight) readAnew(ctx context.Context, screens []*screen, turns <-chan struct{}, seen chan<- observation) {
	for i := 0; ; i++ {
		s := screens[i%len(screens)]
		if i%len(screens) == 0 {
			select {
			case <-turns:
			case <-ctx.Done():
				return
			}
		}
		script := fmt.Sprintf(`fetch(%q).then(r => r.text()).then(text => {
			const page = new DOMParser().parseFromString(text, "text/html");
			return { Moment: page.getElementById("main").dataset.moment, Numbers: %s(page) };
		})`, s.path, strings.TrimSpace(numbersScript))
		if o, err := chromedp.Run(within(f.plain.ctx, ctx), chromedp.Evaluate[observation](script, chromedp.EvalAwaitPromise)); err == nil {
			o.screen, o.way = s, "plain"
			send(ctx, seen, o)
		}
	}
}

func send(ctx context.Context, seen chan<- observation, o observation) {
	select {
	case seen <- o:
	case <-ctx.Done():
	}
}

// within returns the tab's context, which also ends with other.
func within(tab, other context.Context) context.Context {
	ctx, cancel := context.WithCancel(tab)
	context.AfterFunc(other, cancel)
	return ctx
}

// tryAgainAndAgain makes one device fail the same task again and again until the test ends, and other devices fail their tasks. It returns
// the id of the first device's task.
func (x *truth) tryAgainAndAgain() int64 {
	x.t.Helper()
	x.send(http.MethodPut, "/v1/pools/again", map[string]any{"capacity": 1, "lease_ms": 600_000})
	x.send(http.MethodPost, "/v1/batches", map[string]any{"pool": "again", "kind": "k", "max_attempts": 100, "retry_backoff_ms": 0, "devices": []string{"t-1"}})
	var devices []string
	for i := range 1000 {
		devices = append(devices, fmt.Sprint("f-", i))
	}
	var made struct{ ID int64 }
	answer := x.send(http.MethodPost, "/v1/batches", map[string]any{"name": "failing", "pool": "small", "kind": "k", "max_attempts": 1, "devices": devices})
	if err := json.Unmarshal(answer, &made); err != nil {
		x.t.Fatal(err)
	}
	x.failed = made.ID
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	x.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		x.fail(ctx, devices)
	}()
	return x.untilGrantedTo("t-1").ID
}

// fail lets the devices work, with a step every two seconds. A report that no replica accepts is sent again in the next step.
func (x *truth) fail(ctx context.Context, devices []string) {
	var held *granted
	step := 0
	_ = poll(ctx, 2*time.Second, func() bool {
		held = x.step(ctx, "t-1", held, step)
		device := devices[(step/2)%len(devices)]
		x.step(ctx, device, x.step(ctx, device, nil, step), step)
		step++
		return false
	})
}

// step sends a report of a device: that its task has failed, or that it has nothing to do. It returns the task that the device then holds.
func (x *truth) step(ctx context.Context, device string, held *granted, step int) *granted {
	body := map[string]any{"id": fmt.Sprint("s", step)}
	if held != nil {
		body["accept"] = false
		body["results"] = []any{map[string]any{"task": held.ID, "token": held.Token, "status": "failed", "error": fmt.Sprint("no <b>route</b> ", step%3)}}
	}
	answer, err := x.request(ctx, http.MethodPost, "/v1/devices/"+device+"/report", body)
	var reply struct{ Task *granted }
	if err != nil || json.Unmarshal(answer, &reply) != nil {
		return held
	}
	return reply.Task
}

// slotsSaid is poolSaid, with reserved slots counted as free.
func (x *truth) slotsSaid(r *replica) said {
	s := x.poolSaid(r)
	for place, value := range s {
		if value == "reserved" {
			s[place] = "free"
		}
	}
	delete(s, "pool-head/reserved") // shown only while there are reserved slots
	return s
}

// latelySaid returns the recent counts of the pool, and the newest point of its chart.
func (x *truth) latelySaid(r *replica) said {
	s := said{"chart/now": usual{float64(ask[slotsSaid](x.experiment, r, "/v1/pools/"+pool+"/slots").Held), 0}}
	x.talliesSaid(s)
	return s
}

// checksSaid is systemSaid without the replicas, which start and end without an event.
func (x *truth) checksSaid(r *replica) said {
	s := x.systemSaid(r)
	maps.DeleteFunc(s, func(place string, _ any) bool { return strings.HasPrefix(place, "replica-") })
	return s
}

// signsSaid returns the last pass of the reaper and the last-seen times of the replicas.
func (x *truth) signsSaid(r *replica) said {
	s := said{}
	rows, err := x.db.QueryContext(x.t.Context(), `SELECT id, seen_at, reaped_at FROM replicas WHERE reaped_at IS NOT NULL`)
	if err != nil {
		x.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		var seen, reaped time.Time
		if err := rows.Scan(&id, &seen, &reaped); err != nil {
			x.t.Fatal(err)
		}
		s["replica-"+id+"/Last seen"], s["replica-"+id+"/Slots last taken back"] = shown(&seen), shown(&reaped)
	}
	if err := rows.Err(); err != nil {
		x.t.Fatal(err)
	}
	reaped, err := r.metric(x.t.Context(), "dispatcher_reaper_last_success_timestamp_seconds")
	if err != nil {
		x.t.Fatal(err)
	}
	for _, at := range reaped {
		s["pass-reap/Last"] = at
	}
	return s
}
