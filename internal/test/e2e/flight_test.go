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

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// These are the minimum numbers of moments (positions of the event log) at which each page must be compared with the API.
const (
	minLiveMoments  = 8
	minPlainMoments = 6
	minMoments      = 20 // minimum number of moments of both kinds together
	minFittedRates  = 3  // minimum number of comparisons of each number that a page may show early or late

	progressTimeout = 10 * time.Second // time without progress after which the fleet counts as too fast
	compareTimeout  = 3 * time.Minute  // time limit for the screens that are compared together
)

// TestPagesSayTheTruthInFlight compares the dashboard with the API while a fleet works on two replicas. One replica
// is killed and restarted. Each page in a browser, whether it is updated live or loaded again, must show the values
// that the API returns at the same position of the event log. The fleet goes on working meanwhile. Values that
// change without an event (Redis, the passes, last-seen times) are compared with the range of values that their own
// source returned.
func TestPagesSayTheTruthInFlight(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a browser compares each page in 20 moments, which takes minutes; make test-long runs it")
	}
	const slots = 8
	x := newPausableExperiment(t, 3*slots, slots)
	again := x.startFailingTasks()
	first, second := x.replicas[0], x.replicas[1]
	f := &liveComparison{pausableExperiment: x, target: first, browser: newBrowser(t), slots: slots, progressAt: time.Now()}
	f.plain = f.browser.openTab("sign-in", "http://"+first.addr+"/sign-in")
	f.plain.signIn()
	f.plain.open("http://" + first.addr + "/new-pool") // a page that follows no events: a browser has six connections to one address
	killed := false
	f.compareScreens(func(done float64) {
		if !killed && done > 0 {
			second.Kill()
			killed = true
		}
	}, newScreen("pools", "/", x.poolListValues).withEventless(x.reservedValues), newScreen("pool", "/pools/"+pool, x.slotValues).withEventless(x.recentValues), newScreen("batch", fmt.Sprintf("/batches/%d", x.failedBatch), x.batchValues(x.failedBatch)),
		newScreen("task", fmt.Sprintf("/tasks/%d", again), x.taskValues(again)))
	if !killed {
		t.Error("the other replica was never killed")
	}
	f.compareScreens(func(done float64) {
		if killed && done > 0 {
			second.Start()
			killed = false
		}
	}, newScreen("batches", "/batches", x.batchListValues), newScreen("tasks", "/tasks?state=dispatched", x.taskListValues("state=dispatched")),
		newScreen("activity", "/activity?actor_kind=everybody", x.activityValues), newScreen("system", "/system", x.checkValues).withEventless(x.replicaTimeValues))
	f.compareScreens(func(float64) {}, newScreen("device", "/devices/t-1", x.deviceValues("t-1")), newScreen("devices", "/devices", x.deviceListValues).withoutEvents())
}

// liveComparison compares the pages of the dashboard with the API while the fleet works.
type liveComparison struct {
	*pausableExperiment

	target  *replica
	browser *browser
	plain   *tab

	slots      int       // capacity of the pool
	bestShare  float64   // the highest share of the comparisons done so far
	progressAt time.Time // when bestShare last changed
}

// compareScreens keeps each page open and also loads it again, until enough moments were compared. From time to time it
// calls the function meanwhile with the share (0 to 1) of the comparisons that are done.
func (f *liveComparison) compareScreens(meanwhile func(done float64), screens ...*screen) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), compareTimeout)
	defer cancel()
	seen, turns := make(chan observation, 100), make(chan struct{}, 1)
	for _, s := range screens {
		if s.ignoresEvents {
			continue
		}
		one := f.browser.openTab(s.name, "http://"+f.target.addr+s.path)
		defer func() { f.browser.runActions(one.ctx, chromedp.Navigate("about:blank")) }()
		go f.watch(ctx, one, s, seen)
	}
	go f.reloadPages(ctx, screens, turns, seen)
	for done := 0.0; done < 1 && !anyWrong(screens); done = f.doneShare(screens) {
		if ctx.Err() != nil {
			if f.t.Logf("fewer moments than wanted: this machine is too busy (%.2f)", done); done == 0 {
				f.t.Error("something was not compared at all")
			}
			break
		}
		meanwhile(done)
		f.keepPace(done)
		f.readScreens(screens, seen)
		select {
		case turns <- struct{}{}:
		default:
		}
	}
	cancel()
	for _, s := range screens {
		f.readScreen(s, f.target) // the last read of the API, after the last observation of the page
		s.reportDifferences(f.experiment)
	}
}

// readScreens asks the API for the values of each page, and compares them with the observations of the pages.
func (f *liveComparison) readScreens(screens []*screen, observations <-chan observation) {
	for _, s := range screens {
		f.readScreen(s, f.target)
	}
	for {
		select {
		case o := <-observations:
			o.screen.compareObservation(o)
			continue
		default:
		}
		break
	}
	for _, s := range screens {
		s.comparePending()
	}
}

// keepPace reduces the capacity of the pool if the fleet works too fast for the comparison. On a busy machine,
// something happens between any two answers.
func (f *liveComparison) keepPace(done float64) {
	if done > f.bestShare {
		f.bestShare, f.progressAt = done, time.Now()
	}
	if done < f.bestShare { // the comparison of other screens has begun
		f.bestShare = done
	}
	if f.slots > 1 && time.Since(f.progressAt) > progressTimeout {
		f.slots, f.progressAt = (f.slots+1)/2, time.Now()
		f.sendRequest(http.MethodPatch, "/v1/pools/"+pool, map[string]any{"capacity": f.slots})
		f.t.Logf("%d slots from here on: this machine is busy", f.slots)
	}
}

func anyWrong(screens []*screen) bool {
	return slices.ContainsFunc(screens, func(s *screen) bool { return len(s.differences) > 0 })
}

// doneShare returns how much of the required comparisons is done: the smallest share of any page.
func (f *liveComparison) doneShare(screens []*screen) float64 {
	least := 1.0
	for _, s := range screens {
		live, plain := s.comparedMoments()
		if s.ignoresEvents {
			live, plain = minLiveMoments, live+plain
		}
		least = min(least, float64(live)/minLiveMoments, float64(plain)/minPlainMoments, float64(live+plain)/minMoments)
		if s.name == "pool" {
			for _, place := range []string{"pool-head/granted/min", "pool-head/taken back/min", "chart/now"} {
				least = min(least, float64(s.fittedCounts[place])/minFittedRates)
			}
		}
	}
	return least
}

// watch sends an observation for each moment (position of the event log) that an open page shows.
func (f *liveComparison) watch(ctx context.Context, one *tab, s *screen, observations chan<- observation) {
	last := ""
	_ = poll(ctx, 2*ledgerPause, func() bool {
		script := fmt.Sprintf(`(moment => ({ Moment: moment, Numbers: moment === %q ? {} : %s }))(document.getElementById("main").dataset.moment)`, last, readValuesJS())
		o, err := chromedp.Run(tabContext(one.ctx, ctx), chromedp.Evaluate[observation](script))
		if err == nil && o.Moment != last {
			last, o.screen, o.source = o.Moment, s, "live"
			sendObservation(ctx, observations, o)
		}
		return false
	})
}

// reloadPages loads each page once in each turn, with the function fetch of the browser, and sends the values that
// the page shows.
func (f *liveComparison) reloadPages(ctx context.Context, screens []*screen, turns <-chan struct{}, observations chan<- observation) {
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
		})`, s.path, strings.TrimSpace(valuesScript))
		if o, err := chromedp.Run(tabContext(f.plain.ctx, ctx), chromedp.Evaluate[observation](script, chromedp.EvalAwaitPromise)); err == nil {
			o.screen, o.source = s, "plain"
			sendObservation(ctx, observations, o)
		}
	}
}

func sendObservation(ctx context.Context, observations chan<- observation, o observation) {
	select {
	case observations <- o:
	case <-ctx.Done():
	}
}

// tabContext returns a context of the tab that ends when the tab ends or when the context other ends.
func tabContext(tab, other context.Context) context.Context {
	ctx, cancel := context.WithCancel(tab)
	context.AfterFunc(other, cancel)
	return ctx
}

// startFailingTasks makes one device fail the same task again and again until the test ends. Other devices fail their tasks, too.
// startFailingTasks returns the id of the first device's task.
func (x *pausableExperiment) startFailingTasks() int64 {
	x.t.Helper()
	x.sendRequest(http.MethodPut, "/v1/pools/again", map[string]any{"capacity": 1, "lease_ms": 600_000})
	x.sendRequest(http.MethodPost, "/v1/batches", map[string]any{"pool": "again", "kind": "k", "max_attempts": 100, "retry_backoff_ms": 0, "devices": []string{"t-1"}})
	var devices []string
	for i := range 1000 {
		devices = append(devices, fmt.Sprint("f-", i))
	}
	var made struct{ ID int64 }
	answer := x.sendRequest(http.MethodPost, "/v1/batches", map[string]any{"name": "failing", "pool": "small", "kind": "k", "max_attempts": 1, "devices": devices})
	must.Succeed(x.t, json.Unmarshal(answer, &made))
	x.failedBatch = made.ID
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	x.t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		x.failTasks(ctx, devices)
	}()
	return x.waitForGrant("t-1").ID
}

// failTasks lets the devices work, with a step every two seconds. A report that no replica accepts is sent again in the next step.
func (x *pausableExperiment) failTasks(ctx context.Context, devices []string) {
	var held *grantedTask
	step := 0
	_ = poll(ctx, 2*time.Second, func() bool {
		held = x.reportStep(ctx, "t-1", held, step)
		device := devices[(step/2)%len(devices)]
		x.reportStep(ctx, device, x.reportStep(ctx, device, nil, step), step)
		step++
		return false
	})
}

// reportStep sends a report of a device: either its task has failed, or it has nothing to do. reportStep returns the task that the device holds
// afterwards.
func (x *pausableExperiment) reportStep(ctx context.Context, device string, held *grantedTask, step int) *grantedTask {
	body := map[string]any{"id": fmt.Sprint("s", step)}
	if held != nil {
		body["accept"] = false
		body["results"] = []any{map[string]any{"task": held.ID, "token": held.Token, "status": "failed", "error": fmt.Sprint("no <b>route</b> ", step%3)}}
	}
	answer, err := x.doRequest(ctx, http.MethodPost, "/v1/devices/"+device+"/report", body)
	var reply struct{ Task *grantedTask }
	if err != nil || json.Unmarshal(answer, &reply) != nil {
		return held
	}
	return reply.Task
}

// slotValues returns the values of poolValues, but counts reserved slots as free.
func (x *pausableExperiment) slotValues(r *replica) pageValues {
	s := x.poolValues(r)
	for place, value := range s {
		if value == "reserved" {
			s[place] = "free"
		}
	}
	delete(s, "pool-head/reserved") // shown only while there are reserved slots
	return s
}

// recentValues returns the recent counts of the pool, and the newest point of its chart.
func (x *pausableExperiment) recentValues(r *replica) pageValues {
	s := pageValues{"chart/now": roughNumber{float64(readAPI[slotsResponse](x.experiment, r, "/v1/pools/"+pool+"/slots").Held), 0}}
	x.addTallyValues(s)
	return s
}

// checkValues returns the values of systemValues without the replicas, because replicas start and end without an
// event.
func (x *pausableExperiment) checkValues(r *replica) pageValues {
	s := x.systemValues(r)
	maps.DeleteFunc(s, func(place string, _ any) bool { return strings.HasPrefix(place, "replica-") })
	return s
}

// replicaTimeValues returns, for the replicas, the time of the last pass of the reaper and the last-seen time.
func (x *pausableExperiment) replicaTimeValues(r *replica) pageValues {
	s := pageValues{}
	rows, err := x.db.QueryContext(x.t.Context(), `SELECT id, seen_at, reaped_at FROM replicas WHERE reaped_at IS NOT NULL`)
	must.Succeed(x.t, err)
	defer rows.Close()
	for rows.Next() {
		var id string
		var seen, reaped time.Time
		must.Succeed(x.t, rows.Scan(&id, &seen, &reaped))
		s["replica-"+id+"/Last seen"], s["replica-"+id+"/Slots last taken back"] = timeText(&seen), timeText(&reaped)
	}
	must.Succeed(x.t, rows.Err())
	reaped, err := r.readMetric(x.t.Context(), "dispatcher_reaper_last_success_timestamp_seconds")
	must.Succeed(x.t, err)
	for _, at := range reaped {
		s["pass-reap/Last"] = at
	}
	return s
}
