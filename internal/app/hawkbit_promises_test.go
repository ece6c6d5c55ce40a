package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// ddiServers are a real Redis and Postgres behind proxies, with one replica.
type ddiServers struct {
	*instance

	redis, postgres *servers.Proxy
	dsn, redisURL   string // without the proxies
}

// startDDIServers starts a replica on real servers and creates a pool p with these settings.
func startDDIServers(t *testing.T, settings string) *ddiServers {
	t.Helper()
	redis := servers.StartRedis(t)
	s := &ddiServers{redis: servers.NewProxy(t, redis.Addr), postgres: servers.NewProxy(t, sharedPostgres.Server(t).Addr()), dsn: sharedPostgres.NewLedger(t), redisURL: redis.URL()}
	s.instance, _ = startServing(t, serveConfig(t, strings.Replace(s.dsn, sharedPostgres.Server(t).Addr(), s.postgres.Addr, 1), "redis://"+s.redis.Addr))
	s.callOperator(t, http.MethodPut, "/v1/pools/p", settings)
	return s
}

// taskStates returns the states of the tasks of the device, newest first.
func (d *ddiDevice) taskStates() []string {
	d.Helper()
	var states []string
	for _, found := range regexp.MustCompile(`"state":"([a-z_]+)"`).FindAllStringSubmatch(string(d.callOperator(d.T, "GET", "/v1/tasks?device="+d.id, "")), -1) {
		states = append(states, found[1])
	}
	slices.Reverse(states)
	return states
}

// awaitState waits until the newest task of the device has this state.
func (d *ddiDevice) awaitState(want string) {
	d.Helper()
	await.True(d.T, d.id+" "+want, func() bool { states := d.taskStates(); return len(states) > 0 && states[0] == want })
}

// awaitNoLink polls until the answer has no link to an action. It checks that the answer has a polling interval in the format that clients
// can parse.
func (d *ddiDevice) awaitNoLink() {
	d.Helper()
	sleeps := regexp.MustCompile(`"sleep":"[0-2][0-9]:[0-5][0-9]:[0-5][0-9]"`)
	await.True(d.T, "no link for "+d.id, func() bool {
		status, body := d.send("GET", "", "")
		if status == http.StatusOK && !sleeps.MatchString(body) {
			d.Errorf("an answer without a sleep: %s", body)
		}
		return status == http.StatusOK && !strings.Contains(body, "deploymentBase") && !strings.Contains(body, "cancelAction")
	})
}

// findLink polls once. It returns the kind of action that the answer links to: deployment or cancel, or "" if there is no link.
func (d *ddiDevice) findLink() string {
	d.Helper()
	_, body := d.send("GET", "", "")
	return regexp.MustCompile(`(deploymentBase|cancelAction)/[0-9]+`).FindString(body)
}

// TestTheCapHoldsForDDIDevices lets 12 devices that speak DDI and four devices of the dispatcher's protocol share three slots, over two
// replicas. At most three devices work at once, all three slots are used, each task is done once, and no task is lost. Some devices have a
// second task in another pool, and never hold two slots at once.
func TestTheCapHoldsForDDIDevices(t *testing.T) {
	t.Parallel()
	const slots = 3
	s := startDDIServers(t, fmt.Sprintf(`{"capacity":%d}`, slots))
	other, _ := startServing(t, serveConfig(t, s.dsn, s.redisURL))
	s.callOperator(t, "PUT", "/v1/pools/q", `{"capacity":100}`)
	var ids, ddiIDs []string
	for n := range 16 {
		ids = append(ids, fmt.Sprintf("d-%d", n))
	}
	ddiIDs = ids[:12]
	s.queueDeployment(t, "p", "", ids...)
	s.callOperator(t, "POST", "/v1/batches", `{"pool":"q","payload":`+strings.Replace(deploymentPayload, `"os"`, `"q"`, 1)+`,"devices":["d-0","d-1","d-2"]}`)
	var inside, peak atomic.Int64
	enter := func(id string) {
		now := inside.Add(1)
		if now > slots {
			t.Errorf("%s is number %d inside", id, now)
		}
		for most := peak.Load(); now > most && !peak.CompareAndSwap(most, now); most = peak.Load() {
		}
	}
	full := make(chan struct{}) // closed when all slots are used: until then nobody leaves
	var filled sync.Once
	leave := func() {
		if peak.Load() == slots {
			filled.Do(func() { close(full) })
		}
		select {
		case <-full:
		case <-time.After(patience):
			t.Error("the slots were never full")
		}
		inside.Add(-1)
	}
	var all sync.WaitGroup
	for n, id := range ddiIDs {
		all.Go(func() {
			d := newDDIDevice(t, []*instance{s.instance, other}[n%2], id)
			tasks := 1
			if n < 3 {
				tasks = 2
			}
			for range tasks {
				link := d.awaitAction("deploymentBase")
				_, body := d.send("GET", link, "")
				inP := strings.Contains(body, `"part":"os"`)
				if inP {
					enter(id)
				}
				if n := strings.Count(string(s.callOperator(t, "GET", "/v1/tasks?state=dispatched&device="+id, "")), `"state"`); n != 1 {
					t.Errorf("%s holds %d tasks", id, n)
				}
				if inP {
					leave()
				}
				d.feedback(link, "closed", "success", 200)
			}
		})
	}
	for n, id := range ids[12:] {
		all.Go(func() {
			var task *devices.Task
			await.True(t, "a grant of "+id, func() bool {
				task = []*instance{s.instance, other}[n%2].sendReport(t, id, `{"id":"1"}`).Task
				return task != nil
			})
			enter(id)
			leave()
			s.sendReport(t, id, fmt.Sprintf(`{"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token))
		})
	}
	all.Wait()
	if tasks := string(s.callOperator(t, "GET", "/v1/tasks?page_size=100", "")); strings.Count(tasks, `"state":"succeeded"`) != 19 || strings.Count(tasks, `"attempts_counted":1`) != 19 {
		t.Errorf("not each of the 19 tasks was done once: %s", tasks)
	}
}

// TestADDIResultIsNotLost disconnects the ledger while a device reports the end of its action. The answer is not 200, so the client sends
// the report again, and the result is recorded once. Concurrent repeated reports end the action once, and do not change the next grant.
func TestADDIResultIsNotLost(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":1}`)
	d := newDDIDevice(t, s.instance, "one")
	s.queueDeployment(t, "p", "", "one")
	link := d.awaitAction("deploymentBase")
	s.postgres.Cut()
	d.feedback(link, "closed", "success", http.StatusServiceUnavailable)
	s.postgres.EndCut()
	s.queueDeployment(t, "p", "", "one")
	var recorded atomic.Int64
	await.True(t, "a recorded end", func() bool {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if status, _ := d.send("POST", link+"/feedback", `{"status":{"execution":"closed","result":{"finished":"success"}}}`); status == http.StatusOK {
					recorded.Add(1)
				}
			})
		}
		all.Wait()
		return recorded.Load() > 0
	})
	next := d.awaitAction("deploymentBase")
	d.feedback(link, "closed", "failure", 410) // of the first action
	d.feedback(link, "proceeding", "none", 410)
	if states := d.taskStates(); recorded.Load() != 1 || next != "deploymentBase/2" || len(states) != 2 || states[0] != "dispatched" || states[1] != "succeeded" {
		t.Errorf("%d ends recorded, next %s, states %v", recorded.Load(), next, states)
	}
}

// TestADDIResultOfADeletedDeviceIsNotLost deletes a device while it runs a task. The fleet token registers the device again, and the result is
// recorded.
func TestADDIResultOfADeletedDeviceIsNotLost(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":1}`)
	d := newDDIDevice(t, s.instance, "one")
	s.queueDeployment(t, "p", "", "one")
	link := d.awaitAction("deploymentBase")
	s.callOperator(t, "DELETE", "/v1/devices/one?cancel=true", "")
	d.feedback(link, "closed", "success", http.StatusOK)
	if states := d.taskStates(); len(states) != 1 || states[0] != "succeeded" {
		t.Errorf("states %v", states)
	}
}

// TestWithoutAServerADDIDeviceGetsNoLink disconnects Redis, then Postgres. A waiting device gets no link, and gets 503 if the ledger cannot
// be read. While only Redis is disconnected, a device with a grant is not asked to stop, and its result is recorded.
func TestWithoutAServerADDIDeviceGetsNoLink(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":2}`)
	holds, waits := newDDIDevice(t, s.instance, "holds"), newDDIDevice(t, s.instance, "waits")
	s.queueDeployment(t, "p", "", "holds")
	link := holds.awaitAction("deploymentBase")
	s.redis.Cut()
	s.queueDeployment(t, "p", "", "waits")
	for range 3 {
		waits.awaitNoLink()
		holds.expect("GET", link, "", "200 *")
	}
	holds.feedback(link, "closed", "success", 200)
	s.postgres.Cut()
	for range 3 {
		if found := waits.findLink(); found != "" {
			t.Errorf("a link to %s without a ledger", found)
		}
	}
	waits.expect("PUT", "configData", `{"data":{"a":"b"}}`, "503*")
	s.redis.EndCut()
	s.postgres.EndCut()
	waits.feedback(waits.awaitAction("deploymentBase"), "closed", "success", 200)
}

// TestASilentDDIDeviceLosesItsSlot lets a lease end while its device is silent. The next device gets the slot, and a later report of the
// first device does not change the grant of the next device. A success that the first device reports is kept as a late result.
func TestASilentDDIDeviceLosesItsSlot(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":1,"lease_ms":2000}`)
	silent, next := newDDIDevice(t, s.instance, "silent"), newDDIDevice(t, s.instance, "next")
	s.queueDeployment(t, "p", `,"max_attempts":1`, "silent")
	link := silent.awaitAction("deploymentBase")
	s.queueDeployment(t, "p", `,"lease_ms":60000`, "next")
	held := next.awaitAction("deploymentBase")
	silent.expect("GET", link, "", "404")
	silent.feedback(link, "proceeding", "none", 410)
	silent.feedback(link, "closed", "success", 410)
	silent.awaitState("succeeded")
	next.expect("GET", held, "", "200 *")
	next.feedback(held, "closed", "success", 200)
	if events := string(s.callOperator(t, "GET", "/v1/events?kind=device.overrun", "")); strings.Count(events, `"device":"silent"`) != 1 || strings.Contains(events, `"device":"next"`) {
		t.Errorf("overruns: %s", events)
	}
}

// TestEachDDIRequestRenewsTheLease sends only one kind of request after the grant: each kind alone renews the lease.
func TestEachDDIRequestRenewsTheLease(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":3,"lease_ms":9000}`)
	for kind, request := range map[string]func(d *ddiDevice, link string){
		"poll":       func(d *ddiDevice, link string) { d.expect("GET", "", "", `200 *`+link+`"*`) },
		"deployment": func(d *ddiDevice, link string) { d.expect("GET", link, "", "200 *") },
		"feedback":   func(d *ddiDevice, link string) { d.feedback(link, "proceeding", "none", 200) },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := newDDIDevice(t, s.instance, kind)
			s.queueDeployment(t, "p", "", kind)
			link := d.awaitAction("deploymentBase")
			first := s.slotOf(t, kind).LeaseUntil
			await.True(t, "a later end of the lease", func() bool {
				request(d, link)
				return s.slotOf(t, kind).LeaseUntil != first
			})
			d.feedback(link, "closed", "success", 200)
		})
	}
}

// TestASlotOfADDIDeviceGoesOnAtOnce hands one slot over twice. When a DDI device reports the end of its action, a parked report over HTTP gets
// the slot at once. When the device of this report ends its task, the next poll of the DDI device gets the slot.
func TestASlotOfADDIDeviceGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":1}`)
	d := newDDIDevice(t, s.instance, "ddi")
	s.queueDeployment(t, "p", "", "ddi")
	link := d.awaitAction("deploymentBase")
	s.queueDeployment(t, "p", "", "ours")
	ours := s.startLongPoll(t, "ours")
	s.waitForParked(t, "1")
	s.queueDeployment(t, "p", "", "ddi")
	d.feedback(link, "closed", "success", 200)
	reply := <-ours
	if reply.Task == nil {
		t.Fatalf("%+v", reply)
	}
	d.awaitNoLink()
	s.sendReport(t, "ours", fmt.Sprintf(`{"accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, reply.Task.ID, reply.Task.Token))
	d.feedback(d.awaitAction("deploymentBase"), "closed", "success", 200)
}

// TestObstaclesGiveADDIDeviceNoLink checks each obstacle between a task and its start. The answer has a polling interval and no link, and never
// contains "skip", because a client would then report a success. When the obstacle is gone, the device gets its task.
func TestObstaclesGiveADDIDeviceNoLink(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":1}`)
	hour := (time.Now().UTC().Hour() + 12) % 24
	closedWindow := fmt.Sprintf(`"windows":[{"cron":"0 %d * * *","duration":"1h"}]`, hour)
	soon := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339)
	for name, c := range map[string]struct{ pool, batch, before, method, path, after string }{
		"pool-paused":   {pool: `"paused":true`, method: "POST", path: "/v1/pools/POOL/resume"},
		"no-slots":      {pool: `"capacity":0`, method: "PATCH", path: "/v1/pools/POOL", after: `{"capacity":1}`},
		"pool-window":   {pool: closedWindow, method: "PATCH", path: "/v1/pools/POOL", after: `{"windows":null}`},
		"batch-window":  {batch: closedWindow, method: "PATCH", path: "/v1/batches/BATCH", after: `{"windows":null}`},
		"not-before":    {batch: `"not_before":"` + soon + `"`}, // ends by itself
		"batch-paused":  {before: "/v1/batches/BATCH/pause", method: "POST", path: "/v1/batches/BATCH/resume"},
		"device-block":  {before: "/v1/devices/DEVICE/block", method: "POST", path: "/v1/devices/DEVICE/unblock"},
		"limited":       {pool: `"limits":[{"name":"none","per":"device","algorithm":"fixed","max":1,"per_ms":86400000}]`, method: "PATCH", path: "/v1/pools/POOL", after: `{"limits":null}`},
		"limited-batch": {batch: `"limits":[{"name":"none","per":"device","algorithm":"fixed","max":1,"per_ms":86400000}]`, method: "PATCH", path: "/v1/batches/BATCH", after: `{"limits":null}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, pool := newDDIDevice(t, s.instance, name), "pool-"+name
			d.expect("GET", "", "", "200 *")
			members := []string{`"lease_ms":60000`}
			if c.pool != "" {
				members = append(members, c.pool)
			}
			if !strings.Contains(c.pool, "capacity") {
				members = append(members, `"capacity":1`)
			}
			s.callOperator(t, "PUT", "/v1/pools/"+pool, "{"+strings.Join(members, ",")+"}")
			devices := []string{name}
			if strings.HasPrefix(name, "limited") {
				devices = append(devices, name) // a second task, which the policy refuses after the first one
			}
			batch := c.batch
			if batch != "" {
				batch = "," + batch
			}
			made := s.queueDeployment(t, pool, batch, devices...)
			paths := strings.NewReplacer("POOL", pool, "BATCH", regexp.MustCompile(`"id":([0-9]+)`).FindStringSubmatch(made)[1], "DEVICE", name)
			if c.before != "" {
				s.callOperator(t, "POST", paths.Replace(c.before), "")
			}
			if len(devices) == 2 {
				d.feedback(d.awaitAction("deploymentBase"), "closed", "success", 200)
			}
			for range 3 {
				d.expect("GET", "", "", `200 {"config":{"polling":{"sleep":"00:*`) // a blocked device sleeps about 10 min
				if link := d.findLink(); link != "" && c.path != "" {
					t.Errorf("a link to %s", link)
				}
			}
			if c.path != "" {
				s.callOperator(t, c.method, paths.Replace(c.path), c.after)
			}
			link := d.awaitAction("deploymentBase")
			d.expect("GET", link, "", `200 *"download":"forced","update":"forced"*`)
			d.feedback(link, "closed", "success", 200)
		})
	}
}

// TestAStoppedDDIDeviceIsAskedOnce pauses all pools with stop_running, blocks a device, and releases a slot by force. Each device at work
// is asked to stop or loses its link. A task that a pause stopped, or that is retried, starts again with a new action number.
func TestAStoppedDDIDeviceIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := startDDIServers(t, `{"capacity":9}`)
	for _, id := range []string{"paused", "blocked", "released", "released-now", "fails"} {
		d := newDDIDevice(t, s.instance, id)
		s.queueDeployment(t, "p", `,"max_attempts":3,"retry_backoff_ms":0`, id)
		link := d.awaitAction("deploymentBase")
		switch id {
		case "paused":
			s.callOperator(t, "POST", "/v1/pools/pause", `{"stop_running":true}`)
			d.feedback(d.awaitAction("cancelAction"), "closed", "success", 200)
			d.awaitNoLink()
			d.awaitState("pending")
			s.callOperator(t, "POST", "/v1/pools/p/resume", "")
		case "blocked":
			s.callOperator(t, "POST", "/v1/devices/blocked/block", "")
			d.feedback(d.awaitAction("cancelAction"), "closed", "success", 200)
			d.awaitNoLink()
			s.callOperator(t, "POST", "/v1/devices/blocked/unblock", "")
			continue
		case "released":
			s.callOperator(t, "POST", fmt.Sprintf("/v1/pools/p/slots/%d/release", s.slotOf(t, id).Slot), `{"reason":"test"}`)
			d.feedback(d.awaitAction("cancelAction"), "closed", "success", 200)
			d.awaitState("cancelled")
			continue
		case "released-now":
			s.callOperator(t, "POST", fmt.Sprintf("/v1/pools/p/slots/%d/release", s.slotOf(t, id).Slot), `{"reason":"test","now":true}`)
			d.awaitNoLink()
			d.expect("GET", link, "", "404")
			d.feedback(link, "closed", "success", 410)
			continue
		case "fails":
			d.feedback(link, "closed", "failure", 200)
		}
		again := d.awaitAction("deploymentBase")
		if again != "deploymentBase/2" {
			t.Errorf("%s: the next attempt is %s", id, again)
		}
		d.feedback(link, "closed", "success", 410)
		d.feedback(again, "closed", "success", 200)
		d.awaitState("succeeded")
	}
}

// heldSlot is a slot as the API shows it.
type heldSlot struct {
	Slot       int
	Device     string
	LeaseUntil string `json:"lease_until"`
}

// slotOf returns the slot of pool p that the device holds.
func (s *ddiServers) slotOf(t *testing.T, device string) heldSlot {
	t.Helper()
	var list struct{ Slots []heldSlot }
	must.Succeed(t, json.Unmarshal(s.callOperator(t, "GET", "/v1/pools/p/slots", ""), &list))
	at := slices.IndexFunc(list.Slots, func(h heldSlot) bool { return h.Device == device })
	if at < 0 {
		t.Fatal("no slot of " + device)
	}
	return list.Slots[at]
}

// TestAfterARestoreNoDDINumberComesAgain restores a backup with --after-restore. During the standstill, no device gets a new grant, and a
// device whose grant is in the backup can report its end. After the standstill, the action numbers of all devices are much higher than
// before, even if the actions of a device are lost. So feedback about a lost action ends nothing.
func TestAfterARestoreNoDDINumberComesAgain(t *testing.T) {
	t.Parallel()
	redis, dsn := servers.StartRedis(t), sharedPostgres.NewLedger(t)
	i, _ := startServing(t, serveConfig(t, dsn, redis.URL()))
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":2,"lease_ms":200000}`)
	i.queueDeployment(t, "p", "", "known", "lost")
	link := newDDIDevice(t, i, "known").awaitAction("deploymentBase")
	backup := stopAndCopy(t, dsn, i)
	i, _ = startServing(t, serveConfig(t, dsn, redis.URL()))
	lostLink := newDDIDevice(t, i, "lost").awaitAction("deploymentBase")
	must.Succeed(t, i.stop())
	config := serveConfig(t, backup, redis.URL())
	config.AfterRestore = true
	i, _ = startServing(t, config)
	known, lost := newDDIDevice(t, i, "known"), newDDIDevice(t, i, "lost")
	lost.awaitNoLink()
	lost.feedback(lostLink, "closed", "success", 410)
	known.expect("GET", link, "", "200 *")
	known.feedback(link, "proceeding", "none", 200)
	known.feedback(link, "closed", "success", 200)
	i.queueDeployment(t, "p", "", "known")
	known.awaitNoLink()
	alterLedger(t, backup, `UPDATE pools SET stands_until = clock_timestamp()`)
	for device, want := range map[*ddiDevice]string{known: "deploymentBase/1000002", lost: "deploymentBase/1000001"} {
		got := device.awaitAction("deploymentBase")
		if got != want {
			t.Errorf("%s: %s, want %s", device.id, got, want)
		}
		device.feedback(link, "closed", "failure", 410)
		device.feedback(got, "closed", "success", 200)
	}
}
