package bench

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// deviceClient is one connection, which a device or several devices in turn use.
type deviceClient interface {
	// requestTask sends a report of an idle device. If nothing was granted, task is 0.
	requestTask(device string) (task, token int64, err error)
	// finishTask sends the result of a task. The report does not ask for another task.
	finishTask(device string, task, token int64) error
	Close() error
}

// load describes the clients of a row: their connections, and the devices for which they act one after the other.
type load struct {
	clients        []deviceClient
	devices        []string
	stepsPerDevice int           // number of steps of a device before the next device acts
	wrapsAround    bool          // whether the load begins again after the last device
	span           time.Duration // maximum duration
	stepsPerSecond float64       // number of steps per second, each at its scheduled time; 0 means as many as the clients can do
}

// step lets the client c do its work once for one device. scheduled is the time at which the step was to begin. The step
// adds its measurements to totals.
type step func(c deviceClient, device string, scheduled time.Time, totals *figures) error

// newHTTPLoad returns a load in which each device acts once. Its clients have connections to every replica.
func (s *testbed) newHTTPLoad(size scale, devices []string) load {
	l := load{devices: devices, stepsPerDevice: 1, span: size.span}
	for n := range size.conns {
		c, err := dial(s.addrs[n%len(s.addrs)])
		if err != nil {
			s.t.Fatal(err)
		}
		l.clients = append(l.clients, c)
	}
	return l
}

// run lets the clients act until each device has had its turn or l.span has passed. Then it closes the clients. do is the
// step that a client does for a device.
func (l load) run(s *testbed, do step) figures {
	var next atomic.Int64
	var sum figures
	var mu sync.Mutex
	var all sync.WaitGroup
	began := time.Now()
	for _, c := range l.clients {
		all.Go(func() {
			defer c.Close()
			own, err := l.runClient(s, c, &next, began, do)
			if err != nil {
				s.t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(own)
		})
	}
	all.Wait()
	sum.elapsed = time.Since(began)
	return sum
}

// runClient lets one client act until no device is left, the time is over, or a step fails.
func (l load) runClient(s *testbed, c deviceClient, next *atomic.Int64, began time.Time, do step) (totals figures, err error) {
	totals.deadline = began.Add(l.span)
	for !s.t.Failed() && s.ctx.Err() == nil {
		i := int(next.Add(1)) - 1
		if l.wrapsAround {
			i %= len(l.devices)
		}
		if i >= len(l.devices) {
			return totals, nil
		}
		for n := range l.stepsPerDevice {
			due := time.Now()
			if l.stepsPerSecond > 0 {
				due = began.Add(time.Duration(float64(i*l.stepsPerDevice+n) / l.stepsPerSecond * float64(time.Second)))
			}
			if due.Sub(began) >= l.span {
				return totals, nil
			}
			s.sleepUntil(due)
			counted := totals.count
			if err := do(c, l.devices[i], due, &totals); err != nil {
				return totals, err
			}
			totals.countByTenth[min(9, int(10*time.Since(began)/l.span))] += totals.count - counted
		}
	}
	return totals, nil
}

// sleepUntil waits until the time due. It returns earlier if the test ends.
func (s *testbed) sleepUntil(due time.Time) {
	select {
	case <-time.After(time.Until(due)):
	case <-s.ctx.Done():
	}
}

// runCycle runs one task of a device: one report gets the grant, and a second report sends the result. If the first
// report is refused, it is sent again until the time is over. due is the time at which the first report was to be
// sent. runCycle adds its measurements to totals.
func runCycle(c deviceClient, device string, due time.Time, totals *figures) error {
	task, token, err := c.requestTask(device)
	for totals.recordReport(&due); task == 0; totals.recordReport(&due) {
		totals.refused++
		if err != nil && !errors.Is(err, errBusy) || time.Now().After(totals.deadline) {
			return ignoreBusy(err)
		}
		task, token, err = c.requestTask(device)
	}
	for err = errBusy; errors.Is(err, errBusy) && time.Now().Before(totals.deadline); totals.recordReport(&due) {
		err = c.finishTask(device, task, token)
	}
	if err == nil {
		totals.count++
	}
	return ignoreBusy(err)
}

// recordReport records the time since *due as the duration of a report, and sets *due to now for the next report.
func (f *figures) recordReport(due *time.Time) {
	now := time.Now()
	f.reportTimes = append(f.reportTimes, now.Sub(*due))
	*due = now
}

// errBusy means that the server could not answer in time. The report may be sent again.
var errBusy = errors.New("not answered")

func ignoreBusy(err error) error {
	if errors.Is(err, errBusy) {
		return nil
	}
	return err
}

// reportIdle sends one report of a device for which no task can start, and adds the duration of the report to totals. due
// is the time at which the report was to be sent. A grant is an error.
func reportIdle(c deviceClient, device string, due time.Time, totals *figures) error {
	task, _, err := c.requestTask(device)
	totals.recordReport(&due)
	switch {
	case err != nil:
		totals.refused++
		return ignoreBusy(err)
	case task != 0:
		return fmt.Errorf("%s was granted task %d", device, task)
	}
	totals.count++
	return nil
}

// measureFirstReports measures the first reports of devices that are not registered yet.
func measureFirstReports(s *testbed, size scale) figures {
	s.startReplicas(1)
	l := s.newHTTPLoad(size, numberedNames("d", int(size.span.Seconds()*float64(size.maxCyclesPerSecond))))
	return s.measureCPU(func() figures { return l.run(s, reportIdle) })
}

// insertDeviceTokens is a statement that gives each device a token of its own, which the load can derive from the
// name of the device.
const insertDeviceTokens = `INSERT INTO tokens (device, hash, created_at) SELECT id, sha256(('own-' || id)::bytea), now() FROM devices`

// measureIdleReports measures reports of devices that have no tasks.
func measureIdleReports(s *testbed, size scale) figures {
	s.startReplicas(1)
	return s.measureReportsWithoutGrant(size, s.registerDevices("d", 2*size.queuedTasks))
}

func measureIdleAtTwoReplicas(s *testbed, size scale) figures {
	s.startReplicas(2)
	return s.measureReportsWithoutGrant(size, s.registerDevices("d", 2*size.queuedTasks))
}

// measureWaitingReports measures reports of devices that wait for a slot of a full pool.
func measureWaitingReports(s *testbed, size scale) figures {
	s.startReplicas(1)
	return s.measureReportsWithoutGrant(size, s.registerWaiters(size))
}

func measureWaitingAtTwoReplicas(s *testbed, size scale) figures {
	s.startReplicas(2)
	return s.measureReportsWithoutGrant(size, s.registerWaiters(size))
}

// registerWaiters creates a full pool: 60 devices hold its 60 slots. registerWaiters returns other devices, which have
// one task each in the pool.
func (s *testbed) registerWaiters(size scale) []string {
	s.sendOperatorJSON(http.MethodPut, "/v1/pools/p", map[string]any{"capacity": 60})
	holders := s.registerDevices("h", 60)
	s.queueBatches("p", holders)
	granted := s.newHTTPLoad(size, holders).run(s, func(c deviceClient, device string, _ time.Time, totals *figures) error {
		task, _, err := c.requestTask(device)
		if task != 0 {
			totals.count++
		}
		return err
	})
	if granted.count != 60 {
		s.t.Fatalf("%d of 60 slots are held", granted.count)
	}
	waiters := s.registerDevices("d", 2*size.queuedTasks)
	s.queueBatches("p", waiters)
	return waiters
}

// measureReportsWithoutGrant measures reports that are answered without a grant. Each device has a token of its own and has reported
// several times before the measurement.
func (s *testbed) measureReportsWithoutGrant(size scale, known []string) figures {
	s.runSQL(insertDeviceTokens)
	all := s.addrs
	for range 3 { // the first use of a token is news about its device, so the ledger is read again
		for _, addr := range all { // each replica must admit each device
			s.addrs = []string{addr}
			before := s.newHTTPLoad(size, known)
			before.span = time.Minute
			useDeviceTokens(before).run(s, reportIdle)
		}
	}
	s.addrs = all
	l := useDeviceTokens(s.newHTTPLoad(size, known))
	l.wrapsAround = true
	return s.measureCPU(func() figures { return l.run(s, reportIdle) })
}

func useDeviceTokens(l load) load {
	for _, c := range l.clients {
		if one, is := c.(*rawConnection); is {
			one.usesDeviceToken = true
		}
	}
	return l
}
