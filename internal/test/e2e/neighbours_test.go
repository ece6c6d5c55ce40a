package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	neighbourSpan    = time.Minute // time for which each neighbour sends
	neighbourWorkers = 8           // concurrent senders of a neighbour
	neighbourName    = "hostile"   // the hostile device, and its account at the broker
	leastRequests    = 100         // requests of a token that name it as the sender
	nameLimit        = 2 * time.Minute
	probeInterval    = 100 * time.Millisecond
	probeLimit       = time.Second // highest p99 of the reports of honest devices
)

// neighbour is a hostile or broken client. send sends one request, and returns an error only if the test itself fails.
type neighbour struct {
	name    string
	send    func(ctx context.Context, x *crowd, number int64) error // nil: nobody sends, for comparison
	culprit func(x *crowd) string                                   // returns what shows an operator who sends, or "" if nothing does; nil: nobody can be named
}

// neighbours returns all kinds of hostile neighbours. The second one sends nothing to the dispatcher and only uses the cores of this
// machine: it shows how much the load of the senders alone slows the replicas down.
func neighbours() []neighbour {
	report := func(device, body string) func(context.Context, *crowd, int64) error {
		return func(ctx context.Context, x *crowd, _ int64) error {
			return x.request(ctx, fleetToken, http.MethodPost, reportPath(device), body)
		}
	}
	call := func(token, method, path, body string) func(context.Context, *crowd, int64) error {
		return func(ctx context.Context, x *crowd, _ int64) error { return x.request(ctx, token, method, path, body) }
	}
	upload := `{"pool":"aside","paused":true,"devices":["` + strings.Repeat(`u","`, 9_999) + `u"]}`
	return []neighbour{
		{name: "nobody"},
		{"somebody who only uses the cores", compute, nil},
		{"a device that reports over HTTP", report(neighbourName+"-http", `{"id":"1"}`), noisyDevice(neighbourName + "-http")},
		{"a device that reports over MQTT", publish, noisyDevice(neighbourName)},
		{"a device that invents results", report(neighbourName+"-results", `{"id":"1","results":[{"task":1,"token":1,"status":"succeeded"}]}`), noisyDevice(neighbourName + "-results")},
		{"a fleet token that registers devices", func(ctx context.Context, x *crowd, number int64) error {
			return x.request(ctx, fleetToken, http.MethodPost, reportPath(fmt.Sprint("invented-", number)), `{"id":"1"}`)
		}, (*crowd).registeredByFleet},
		{"a viewer that reads lists", call("viewer", http.MethodGet, "/v1/devices?page_size=1000", ""), requestsOf("viewer")},
		{"an operator that uploads batches", call("uploader", http.MethodPost, "/v1/batches", upload), requestsOf("uploader")},
		{"an operator that opens watches", openWatch, requestsOf("watcher")},
		{"a caller that asks for leases", func(ctx context.Context, x *crowd, number int64) error {
			return x.request(ctx, "caller", http.MethodPost, "/v1/pools/aside/leases", fmt.Sprintf(`{"holder":"job-%d"}`, number%1000))
		}, requestsOf("caller")},
		{"somebody who reads the metrics", call("", http.MethodGet, "/metrics", ""), nil},
	}
}

// TestNeighbours lets one hostile neighbour after the other send without pause for a minute, while 100 devices work in 60 slots. No promise
// of the README may be broken, the slots must stay held, and an event or a metric must show who sends. The log compares the reports of an
// honest device during this minute with its reports without a neighbour.
func TestNeighbours(t *testing.T) { //nolint:tparallel // tries come one after another
	t.Parallel()
	if testing.Short() {
		t.Skip("takes a minute for each neighbour: runs with make test-long")
	}
	runJudged(t, func(t *testing.T, v *verdict) {
		t.Helper()
		x := &crowd{experiment: newExperiment(t, v), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: neighbourWorkers}}}
		x.program = &servers.Program{} // the race detector would slow the replicas down
		x.fleet.Devices, x.fleet.Tasks, x.timeLimit = 100, 200, time.Hour
		x.fleet.Timeout = x.timeLimit
		x.deploy()
		x.createTokens()
		var faults []fault
		for _, n := range neighbours() {
			faults = append(faults, fault{n.name, func(ctx context.Context) error { return x.endure(ctx, n) }})
		}
		x.run(faults...)
	})
}

// crowd is an experiment with hostile neighbours.
type crowd struct {
	*experiment
	client  *http.Client
	secrets map[string]string // secrets by the name of the token
	device  paho.Client       // the connection of the hostile device to the broker

	calmP99  time.Duration
	calmHeld float64
}

// createTokens creates the tokens and the pool of the neighbours.
func (x *crowd) createTokens() {
	x.t.Helper()
	x.secrets = map[string]string{adminToken: adminToken, fleetToken: fleetToken}
	x.replicas[0].callOperator(x.t, http.MethodPut, "/v1/pools/aside", `{"capacity":0}`)
	for name, body := range map[string]string{
		"viewer":   `{"name":"viewer","role":"viewer"}`,
		"uploader": `{"name":"uploader","role":"operator"}`,
		"watcher":  `{"name":"watcher","role":"operator"}`,
		"caller":   `{"name":"caller","role":"caller","pools":["aside"]}`,
	} {
		var created struct{ Token string }
		must.Succeed(x.t, json.Unmarshal(x.replicas[0].callOperator(x.t, http.MethodPost, "/v1/tokens", body), &created))
		x.secrets[name] = created.Token
	}
	options := paho.NewClientOptions().AddBroker(x.broker.URL).SetClientID(neighbourName).SetUsername(neighbourName).SetPassword(fleetToken)
	x.device = paho.NewClient(options)
	if token := x.device.Connect(); !token.WaitTimeout(recoveryLimit) || token.Error() != nil {
		x.t.Fatal(token.Error())
	}
	x.t.Cleanup(func() { x.device.Disconnect(0) })
}

// endure lets neighbour send for neighbourSpan, while an honest device reports. It logs how the reports of the honest device were answered.
func (x *crowd) endure(ctx context.Context, neighbour neighbour) error {
	ctx, cancel := context.WithTimeout(ctx, neighbourSpan)
	defer cancel()
	var sent atomic.Int64
	var senders sync.WaitGroup
	for range neighbourWorkers {
		senders.Go(func() {
			for neighbour.send != nil && ctx.Err() == nil {
				if err := neighbour.send(ctx, x, sent.Add(1)); err != nil && !errors.Is(err, errRefused) && ctx.Err() == nil {
					x.t.Logf("%s: %v", neighbour.name, err)
				}
			}
		})
	}
	durations, refused, held := x.probe(ctx)
	senders.Wait()
	slices.Sort(durations)
	p50, p99 := durations[len(durations)/2], durations[len(durations)*99/100]
	if neighbour.send == nil {
		x.calmP99, x.calmHeld = p99, held
	}
	named := "-"
	if neighbour.culprit != nil {
		if named = neighbour.culprit(x); named == "" {
			x.addViolation("%s: nothing names the culprit", neighbour.name)
		}
	}
	x.t.Logf("%s sent %d: p50 %s, p99 %s (%.1f of the calm one), %d of %d refused, %.1f slots held (calm: %.1f); named by: %s",
		neighbour.name, sent.Load(), p50, p99, float64(p99)/float64(x.calmP99), refused, len(durations), held, x.calmHeld, named)
	if refused > 0 {
		x.addViolation("%s: %d reports of an honest device were refused", neighbour.name, refused)
	}
	if p99 > probeLimit {
		x.addDoubt("%s: the p99 of the reports of an honest device is %s", neighbour.name, p99)
	}
	return nil
}

// probe lets an honest device report until ctx ends. It returns the durations of the reports, the number of refused ones, and the mean number
// of held slots.
func (x *crowd) probe(ctx context.Context) (durations []time.Duration, refused int, held float64) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	sum := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := x.request(context.WithoutCancel(ctx), fleetToken, http.MethodPost, reportPath("honest"), `{"id":"1","accept":false}`)
		durations = append(durations, time.Since(began))
		if err != nil {
			refused++
		}
		if now, err := x.heldCount(context.WithoutCancel(ctx)); err == nil {
			sum += now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return durations, refused, float64(sum) / float64(len(durations))
}

// errRefused means that a replica answered 503.
var errRefused = errors.New("refused")

func reportPath(device string) string { return "/v1/devices/" + device + "/report" }

// request sends a request with the token of this name. It returns an error if the answer is 503 (errRefused) or if there is no answer.
func (x *crowd) request(ctx context.Context, token, method, path, body string, accept ...string) error {
	request, err := http.NewRequestWithContext(ctx, method, x.fleet.URL+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+x.secrets[token])
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header["Accept"] = accept
	response, err := x.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return errRefused
	}
	return nil
}

// publish sends a report of the hostile device over MQTT. It waits for each hundredth acknowledgement only.
func publish(_ context.Context, x *crowd, number int64) error {
	sent := x.device.Publish(devices.ReportTopic(neighbourName), 1, false, `{"id":"1"}`)
	if number%100 == 0 && !sent.WaitTimeout(answerTimeout) {
		return errors.New("the broker does not acknowledge")
	}
	return nil
}

// openWatch opens a stream of events, and closes it soon.
func openWatch(ctx context.Context, x *crowd, _ int64) error {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	if err := x.request(ctx, "watcher", http.MethodGet, "/v1/events", "", "text/event-stream"); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// compute uses a core until ctx ends, in a process of its own. If all cores are in use by earlier calls, it only waits for the end of ctx.
func compute(ctx context.Context, _ *crowd, number int64) error {
	if number > int64(runtime.NumCPU()) {
		<-ctx.Done()
		return nil
	}
	_ = exec.CommandContext(ctx, "sh", "-c", "while :; do :; done").Run() // ends with ctx
	return nil
}

// requestsOf returns a function that returns the number of requests with the token of this name, as the list of tokens shows it. Each replica
// writes the number once a minute, so the function waits.
func requestsOf(name string) func(x *crowd) string {
	return func(x *crowd) string {
		for deadline := time.Now().Add(nameLimit); time.Now().Before(deadline); <-time.After(probeInterval) {
			var list operators.TokenList
			if err := json.Unmarshal(x.replicas[0].callOperator(x.t, http.MethodGet, "/v1/tokens", ""), &list); err != nil {
				x.t.Error(err)
				return ""
			}
			for _, token := range list.Tokens {
				if token.Name == name && token.Requests >= leastRequests {
					return fmt.Sprintf("token %s: %d requests", name, token.Requests)
				}
			}
		}
		return ""
	}
}

// noisyDevice returns a function that returns the event device.noisy of the device.
func noisyDevice(device string) func(x *crowd) string {
	return func(x *crowd) string {
		var list struct {
			Events []struct{ Kind, Detail string }
		}
		answer := x.replicas[0].callOperator(x.t, http.MethodGet, "/v1/events?kind=device.noisy&device="+device, "")
		if err := json.Unmarshal(answer, &list); err != nil || len(list.Events) == 0 {
			return ""
		}
		return list.Events[0].Kind + " " + list.Events[0].Detail
	}
}

// registeredByFleet returns the number of devices that the fleet token registered, as the metrics of the first replica show it.
func (x *crowd) registeredByFleet() string {
	samples, err := x.replicas[0].readMetric(x.t.Context(), "dispatcher_devices_registered_total")
	if err != nil || len(samples) == 0 {
		return ""
	}
	return fmt.Sprint("dispatcher_devices_registered_total ", samples)
}
