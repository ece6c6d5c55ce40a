package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestPagesSayTheTruth opens the dashboard of two replicas in a browser, under load, and kills one replica. The pages of the other replica
// are still updated. The pages of the killed replica show that they are disconnected, and catch up without a reload once it has restarted.
// Whenever the test stops the fleet in the middle of its work, each page shows the same values as the API.
func TestPagesSayTheTruth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a browser opens each page beside a fleet at work, which takes minutes; make test-long runs it")
	}
	devices, slots := 80, 20
	x := newTruth(t, devices, slots)
	first, second := x.replicas[0], x.replicas[1]
	b := newBrowser(t)
	page := func(r *replica, path string) string { return "http://" + r.addr + path }
	other := b.tab("sign-in", page(first, "/sign-in"))
	other.signIn()
	other.open("about:blank") // a browser has six connections to one address, and each open page uses one
	open := map[*tab]func(*replica) said{
		b.tab("pools", page(first, "/")):           x.poolsSaid,
		b.tab("pool", page(first, "/pools/"+pool)): x.poolSaid,
		b.tab("batch", page(first, "/batches/1")):  x.batchSaid(1),
		b.tab("tasks", page(first, "/tasks")):      x.tasksSaid(""),
	}
	cutOff := b.tab("pool, at the other replica", page(second, "/pools/"+pool))
	for one := range open {
		one.until(`document.getElementById("pulse").textContent === "live"`)
	}
	cutOff.until(`document.getElementById("pulse").textContent === "live"`)

	second.Kill()
	cutOff.until(`document.getElementById("stale").textContent.startsWith("Disconnected") && !document.getElementById("stale").hidden`)
	for one := range open {
		if one.name == "tasks" || one.name == "batch" { // the numbers of ended tasks still change
			ended := one.numbers()["count/succeeded"]
			one.until(fmt.Sprintf(`%s["count/succeeded"] !== %q`, numbersHere(), ended))
		}
	}
	still := func(at *replica, tabs map[*tab]func(*replica) said) {
		x.load.Pause()
		for one, said := range tabs {
			x.expectTruth(one, at, said, nil)
		}
	}
	still(first, open)
	x.expectEveryPage(other, first)
	x.load.Resume()

	second.Start()
	cutOff.until(`document.getElementById("stale").hidden`)
	still(second, map[*tab]func(*replica) said{cutOff: x.poolSaid})
	still(first, open)
	x.load.Resume()
	if len(x.compared) < 14 {
		t.Errorf("only these pages were compared: %v", x.compared)
	}
}

// truth is an experiment whose fleet can be stopped.
type truth struct {
	*experiment

	load     *servers.Process
	failed   int64          // the batch with one failed task and one task whose slot was taken back
	compared map[string]int // number of compared values by page
}

// newTruth starts an experiment with this number of devices and slots.
func newTruth(t *testing.T, devices, slots int) *truth {
	t.Helper()
	x := &truth{experiment: newExperiment(t, &verdict{}), compared: map[string]int{}}
	x.fleet.Devices = devices
	x.deploy()
	x.send(http.MethodPut, "/v1/pools/"+pool, map[string]any{"capacity": slots, "lease_ms": 600_000}) // longer than the fleet is ever stopped
	x.startLoad(slots / 2)
	x.sideShows()
	return x
}

// startLoad starts the fleet as a separate program, which can be stopped with SIGSTOP. It waits until the fleet holds at least slots slots.
func (x *truth) startLoad(slots int) {
	x.t.Helper()
	binary := program.Path(x.t)
	command := func() *exec.Cmd {
		cmd := exec.Command(binary, "simulate", "--url", "http://"+x.replicas[0].addr+",http://"+x.replicas[1].addr, "--mqtt-url", x.broker.URL,
			"--pool", pool, "--devices", fmt.Sprint(x.fleet.Devices), "--tasks", "30000", "--via", "mixed", "--work", "1s", "--period", "3s")
		cmd.Env = append(os.Environ(), "DISPATCHER_TOKEN="+adminToken, "DISPATCHER_FLEET_TOKEN="+fleetToken)
		return cmd
	}
	x.load = servers.StartProcess(x.t, command, func() error { return nil })
	ctx, cancel := context.WithTimeout(x.t.Context(), runLimit)
	defer cancel()
	if err := poll(ctx, look, func() bool {
		held, err := x.held(ctx)
		return err == nil && held >= slots
	}); err != nil {
		x.t.Fatal("the fleet did not begin to work")
	}
}

// sideShows creates two small pools. One is paused. In the other pool, one task failed, the slot of one was taken back, and one waits.
func (x *truth) sideShows() {
	x.t.Helper()
	x.send(http.MethodPut, "/v1/pools/paused", map[string]any{"capacity": 5})
	x.send(http.MethodPost, "/v1/pools/paused/pause", map[string]any{"reason": "a reason"})
	x.send(http.MethodPost, "/v1/batches", map[string]any{"pool": "paused", "kind": "k", "devices": []string{"p-1", "p-2"}})
	x.send(http.MethodPut, "/v1/pools/small", map[string]any{"capacity": 2, "lease_ms": x.fleet.Lease.Milliseconds()})
	answer := x.send(http.MethodPost, "/v1/batches", map[string]any{"name": "small", "pool": "small", "kind": "k", "max_attempts": 1, "devices": []string{"x-1", "x-2", "x-3"}})
	var made struct{ ID int64 }
	if err := json.Unmarshal(answer, &made); err != nil {
		x.t.Fatal(err)
	}
	x.failed = made.ID
	granted := x.untilGrantedTo("x-1")
	result := map[string]any{"task": granted.ID, "token": granted.Token, "status": "rejected", "error": "no <b>route</b>"}
	x.send(http.MethodPost, "/v1/devices/x-1/report", map[string]any{"id": "r", "accept": false, "results": []any{result}})
	x.untilGrantedTo("x-2") // and x-2 never reports again
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	if err := poll(ctx, look, func() bool {
		return len(ask[struct{ Tasks []taskSaid }](x.experiment, x.replicas[0], "/v1/tasks?pool=small&state=timed_out").Tasks) == 1
	}); err != nil {
		x.t.Fatal("the slot of a silent device was not taken back")
	}
}

type granted struct{ ID, Token int64 }

func (x *truth) untilGrantedTo(device string) granted {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	var reply struct{ Task *granted }
	if err := poll(ctx, look, func() bool {
		_ = json.Unmarshal(x.send(http.MethodPost, "/v1/devices/"+device+"/report", map[string]any{"id": "g"}), &reply)
		return reply.Task != nil
	}); err != nil {
		x.t.Fatalf("nothing is granted to %s", device)
	}
	return *reply.Task
}

// send sends a request of an operator or a device to the first replica.
func (x *truth) send(method, path string, body any) []byte {
	x.t.Helper()
	answer, err := x.request(x.t.Context(), method, path, body)
	if err != nil {
		x.t.Fatal(err)
	}
	return answer
}

func (x *truth) request(ctx context.Context, method, path string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+x.replicas[0].addr+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	token := adminToken
	if strings.HasSuffix(path, "/report") {
		token = fleetToken
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Timeout: recoveryLimit}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil {
		return nil, err
	}
	if response.StatusCode > 299 {
		return nil, fmt.Errorf("%s %s: %s %s", method, path, response.Status, &answer)
	}
	return answer.Bytes(), nil
}

// expectTruth waits until the page shows what the API returns before and after it: requests that were in flight when the fleet stopped end
// first. If reload is not nil, it is called to load the page again, because some pages do not follow events.
func (x *truth) expectTruth(one *tab, at *replica, ask func(*replica) said, reload func()) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	wrong := []string{"it was never compared"}
	err := poll(ctx, look, func() bool {
		before := ask(at)
		if reload != nil {
			reload()
		}
		numbers := one.numbers()
		if !reflect.DeepEqual(ask(at).exact(), before.exact()) {
			return false
		}
		x.compared[one.name] = len(before)
		wrong = before.differs(numbers)
		return len(wrong) == 0
	})
	if err != nil {
		x.t.Errorf("%s: %s", one.name, strings.Join(wrong, "\n"))
	}
	if reload == nil {
		one.until(`window.marked`)
	}
}

// expectEveryPage compares the pages that are not open.
func (x *truth) expectEveryPage(one *tab, at *replica) {
	x.t.Helper()
	slots := ask[slotsSaid](x.experiment, at, "/v1/pools/"+pool+"/slots").Slots
	busy := 0
	for busy < len(slots)-1 && slots[busy].State != "held" {
		busy++
	}
	for path, said := range map[string]func(*replica) said{
		"/batches": x.batchesSaid, fmt.Sprintf("/batches/%d", x.failed): x.batchSaid(x.failed), "/devices": x.devicesSaid, "/activity": x.activitySaid, "/system": x.systemSaid,
		"/tasks?pool=small&state=failed": x.filteredSaid("pool=small&state=failed"), "/tasks?state=timed_out": x.tasksSaid("state=timed_out"),
		fmt.Sprintf("/tasks/%d", slots[busy].Task): x.taskSaid(slots[busy].Task),
		"/devices/" + slots[busy].Device:           x.deviceSaid(slots[busy].Device),
		"/devices/x-1":                             x.deviceSaid("x-1"),
	} {
		one.name = path
		x.expectTruth(one, at, said, func() { one.open("http://" + at.addr + path) })
	}
}

// filteredSaid is tasksSaid without the counts, for a filter whose pages show no counts.
func (x *truth) filteredSaid(filter string) func(*replica) said {
	return func(r *replica) said {
		s := x.tasksSaid(filter)(r)
		for place := range s {
			if strings.HasPrefix(place, "count/") {
				delete(s, place)
			}
		}
		return s
	}
}
