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

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestPagesSayTheTruth opens the dashboards of two replicas in a browser while a fleet works, and kills one replica.
// The pages of the other replica must still be updated. The pages of the killed replica must show that they are
// disconnected, and must catch up without a reload once the replica has restarted. Whenever the test stops the fleet in
// the middle of its work, each page must show the same values as the API.
func TestPagesSayTheTruth(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: a browser opens each page beside a fleet at work, which takes minutes; make test-long runs it")
	}
	devices, slots := 80, 20
	x := newPausableExperiment(t, devices, slots)
	first, second := x.replicas[0], x.replicas[1]
	b := newBrowser(t)
	page := func(r *replica, path string) string { return "http://" + r.addr + path }
	other := b.openTab("sign-in", page(first, "/sign-in"))
	other.signIn()
	other.open("about:blank") // a browser has six connections to one address, and each open page uses one
	open := map[*tab]func(*replica) pageValues{
		b.openTab("pools", page(first, "/")):           x.poolListValues,
		b.openTab("pool", page(first, "/pools/"+pool)): x.poolValues,
		b.openTab("batch", page(first, "/batches/1")):  x.batchValues(1),
		b.openTab("tasks", page(first, "/tasks")):      x.taskListValues(""),
	}
	cutOff := b.openTab("pool, at the other replica", page(second, "/pools/"+pool))
	for one := range open {
		one.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	}
	cutOff.waitForJS(`document.getElementById("pulse").textContent === "live"`)

	second.Kill()
	cutOff.waitForJS(`document.getElementById("stale").textContent.startsWith("Disconnected") && !document.getElementById("stale").hidden`)
	for one := range open {
		if one.name == "tasks" || one.name == "batch" { // the numbers of ended tasks still change
			ended := one.readValues()["count/succeeded"]
			one.waitForJS(fmt.Sprintf(`%s["count/succeeded"] !== %q`, readValuesJS(), ended))
		}
	}
	still := func(at *replica, tabs map[*tab]func(*replica) pageValues) {
		x.fleetProcess.Pause()
		for one, said := range tabs {
			x.expectPageMatches(one, at, said, nil)
		}
	}
	still(first, open)
	x.expectEveryPage(other, first)
	x.fleetProcess.Resume()

	second.Start()
	cutOff.waitForJS(`document.getElementById("stale").hidden`)
	still(second, map[*tab]func(*replica) pageValues{cutOff: x.poolValues})
	still(first, open)
	x.fleetProcess.Resume()
	if len(x.compared) < 14 {
		t.Errorf("only these pages were compared: %v", x.compared)
	}
}

// pausableExperiment is an experiment whose fleet the test can stop and continue.
type pausableExperiment struct {
	*experiment

	fleetProcess *servers.Process
	failedBatch  int64          // the batch with one failed task and one task whose slot was taken back
	compared     map[string]int // number of compared values by page
}

// newPausableExperiment starts an experiment with this number of devices and slots.
func newPausableExperiment(t *testing.T, devices, slots int) *pausableExperiment {
	t.Helper()
	x := &pausableExperiment{experiment: newExperiment(t, &verdict{}), compared: map[string]int{}}
	x.fleet.Devices = devices
	x.deploy()
	x.sendRequest(http.MethodPut, "/v1/pools/"+pool, map[string]any{"capacity": slots, "lease_ms": 600_000}) // longer than the fleet is ever stopped
	x.startFleet(slots / 2)
	x.createSmallPools()
	return x
}

// startFleet starts the fleet as a process of its own, which can be stopped with SIGSTOP. It waits until the fleet
// holds at least this number of slots.
func (x *pausableExperiment) startFleet(slots int) {
	x.t.Helper()
	binary := program.Path(x.t)
	command := func() *exec.Cmd {
		cmd := exec.Command(binary, "simulate", "--url", "http://"+x.replicas[0].addr+",http://"+x.replicas[1].addr, "--mqtt-url", x.broker.URL,
			"--pool", pool, "--devices", fmt.Sprint(x.fleet.Devices), "--tasks", "30000", "--via", "mixed", "--work", "1s", "--period", "3s")
		cmd.Env = append(os.Environ(), "DISPATCHER_TOKEN="+adminToken, "DISPATCHER_FLEET_TOKEN="+fleetToken)
		return cmd
	}
	x.fleetProcess = servers.StartProcess(x.t, command, func() error { return nil })
	ctx, cancel := context.WithTimeout(x.t.Context(), runLimit)
	defer cancel()
	if err := poll(ctx, ledgerPause, func() bool {
		held, err := x.heldCount(ctx)
		return err == nil && held >= slots
	}); err != nil {
		x.t.Fatal("the fleet did not begin to work")
	}
}

// createSmallPools creates two small pools. One is paused. In the other pool, one task has failed, the slot of one
// task was taken back because its lease ended, and one task waits.
func (x *pausableExperiment) createSmallPools() {
	x.t.Helper()
	x.sendRequest(http.MethodPut, "/v1/pools/paused", map[string]any{"capacity": 5})
	x.sendRequest(http.MethodPost, "/v1/pools/paused/pause", map[string]any{"reason": "a reason"})
	x.sendRequest(http.MethodPost, "/v1/batches", map[string]any{"pool": "paused", "kind": "k", "devices": []string{"p-1", "p-2"}})
	x.sendRequest(http.MethodPut, "/v1/pools/small", map[string]any{"capacity": 2, "lease_ms": x.fleet.Lease.Milliseconds()})
	answer := x.sendRequest(http.MethodPost, "/v1/batches", map[string]any{"name": "small", "pool": "small", "kind": "k", "max_attempts": 1, "devices": []string{"x-1", "x-2", "x-3"}})
	var made struct{ ID int64 }
	must.Succeed(x.t, json.Unmarshal(answer, &made))
	x.failedBatch = made.ID
	granted := x.waitForGrant("x-1")
	result := map[string]any{"task": granted.ID, "token": granted.Token, "status": "rejected", "error": "no <b>route</b>"}
	x.sendRequest(http.MethodPost, "/v1/devices/x-1/report", map[string]any{"id": "r", "accept": false, "results": []any{result}})
	x.waitForGrant("x-2") // and x-2 never reports again
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	if err := poll(ctx, ledgerPause, func() bool {
		return len(readAPI[struct{ Tasks []taskResponse }](x.experiment, x.replicas[0], "/v1/tasks?pool=small&state=timed_out").Tasks) == 1
	}); err != nil {
		x.t.Fatal("the slot of a silent device was not taken back")
	}
}

type grantedTask struct{ ID, Token int64 }

func (x *pausableExperiment) waitForGrant(device string) grantedTask {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	var reply struct{ Task *grantedTask }
	if err := poll(ctx, ledgerPause, func() bool {
		_ = json.Unmarshal(x.sendRequest(http.MethodPost, "/v1/devices/"+device+"/report", map[string]any{"id": "g"}), &reply)
		return reply.Task != nil
	}); err != nil {
		x.t.Fatalf("nothing is granted to %s", device)
	}
	return *reply.Task
}

// sendRequest sends a request of an operator or a device to the first replica.
func (x *pausableExperiment) sendRequest(method, path string, body any) []byte {
	x.t.Helper()
	answer, err := x.doRequest(x.t.Context(), method, path, body)
	must.Succeed(x.t, err)
	return answer
}

func (x *pausableExperiment) doRequest(ctx context.Context, method, path string, body any) ([]byte, error) {
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

// expectPageMatches waits until the page shows the values that the API returns both before and after the page was
// read. This may take a moment, because requests that were in flight when the fleet stopped must end first. If
// reload is not nil, it loads the page again: some pages do not follow events.
func (x *pausableExperiment) expectPageMatches(one *tab, target *replica, readValues func(*replica) pageValues, reload func()) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	wrong := []string{"it was never compared"}
	err := poll(ctx, ledgerPause, func() bool {
		before := readValues(target)
		if reload != nil {
			reload()
		}
		numbers := one.readValues()
		if !reflect.DeepEqual(readValues(target).exactValues(), before.exactValues()) {
			return false
		}
		x.compared[one.name] = len(before)
		wrong = before.differences(numbers)
		return len(wrong) == 0
	})
	if err != nil {
		x.t.Errorf("%s: %s", one.name, strings.Join(wrong, "\n"))
	}
	if reload == nil {
		one.waitForJS(`window.marked`)
	}
}

// expectEveryPage compares the pages that are not open in a tab with the API.
func (x *pausableExperiment) expectEveryPage(one *tab, target *replica) {
	x.t.Helper()
	slots := readAPI[slotsResponse](x.experiment, target, "/v1/pools/"+pool+"/slots").Slots
	busy := 0
	for busy < len(slots)-1 && slots[busy].State != "held" {
		busy++
	}
	for path, said := range map[string]func(*replica) pageValues{
		"/batches": x.batchListValues, fmt.Sprintf("/batches/%d", x.failedBatch): x.batchValues(x.failedBatch), "/devices": x.deviceListValues, "/activity?actor_kind=everybody": x.activityValues, "/system": x.systemValues,
		"/tasks?pool=small&state=failed": x.filteredTaskValues("pool=small&state=failed"), "/tasks?state=timed_out": x.taskListValues("state=timed_out"),
		fmt.Sprintf("/tasks/%d", slots[busy].Task): x.taskValues(slots[busy].Task),
		"/devices/" + slots[busy].Device:           x.deviceValues(slots[busy].Device),
		"/devices/x-1":                             x.deviceValues("x-1"),
	} {
		one.name = path
		x.expectPageMatches(one, target, said, func() { one.open("http://" + target.addr + path) })
	}
}

// filteredTaskValues returns the values of taskListValues without the counts, for a filter with which pages show no
// counts.
func (x *pausableExperiment) filteredTaskValues(filter string) func(*replica) pageValues {
	return func(r *replica) pageValues {
		s := x.taskListValues(filter)(r)
		for place := range s {
			if strings.HasPrefix(place, "count/") {
				delete(s, place)
			}
		}
		return s
	}
}
