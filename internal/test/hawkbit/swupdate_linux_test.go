package hawkbit

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fault is an event that happens to a device during its update.
type fault struct {
	name   string
	leases float64 // duration of a download, in leases
	isCut  bool    // the connection of the first download is cut
	want   string  // state of the task at the end
	// run does the update, from before the first boot until its end was reported.
	run func(d *device)
}

// faults returns the faults that the devices meet in turn. During a download, swupdate asks its own main process for its status without a
// pause, which takes a whole core. The short form leaves out the last two faults, because they need the longest downloads.
func faults() []fault {
	const short, long = 0.3, 0.6
	simple := func(d *device) { d.boot(0); d.succeed() }
	return []fault{
		{"stopped for longer than the lease", long, false, "succeeded", (*device).stopForALease},
		{"killed before the restart", short, false, "succeeded", (*device).dieBeforeRestart},
		{"cancelled in the download", long, false, "cancelled", func(d *device) {
			d.boot(0)
			d.awaitInside()
			d.callOperatorAPI("POST", "/v1/batches/"+strconv.FormatInt(d.batch, 10)+"/cancel", "")
			d.awaitStep("the end of the cancelled task", func() bool { return d.taskState(d.id) == "cancelled" })
		}},
		{"a cut connection", short, true, "succeeded", simple},
		{"an installation that failed", short, false, "succeeded", (*device).failOnce},
		{"nothing", short, false, "succeeded", simple},
		{"killed in the download", long, false, "succeeded", func(d *device) {
			d.boot(0)
			d.awaitInside()
			d.halt()
			simple(d)
		}},
		{"a slow artifact", 2.5, false, "succeeded", simple},
	}
}

// stopForALease stops swupdate in the download until its lease has ended. The overrun must be recorded.
func (d *device) stopForALease() {
	d.Helper()
	d.boot(0)
	d.awaitInside()
	d.signal(syscall.SIGSTOP)
	d.awaitEvent("task.lapsed", "")
	d.signal(syscall.SIGCONT)
	d.awaitEvent("device.overrun", "wire=hawkbit")
	d.succeed()
}

// dieBeforeRestart kills swupdate after the installation, until its lease has ended.
func (d *device) dieBeforeRestart() {
	d.Helper()
	d.boot(0)
	d.awaitInstalled()
	d.halt()
	d.awaitEvent("task.lapsed", "")
	_ = os.Remove(d.marker())
	d.boot(2)
	d.succeed()
}

// failOnce reports a failed installation after the first restarts, until the failure is recorded with swupdate's text.
func (d *device) failOnce() {
	d.Helper()
	d.boot(0)
	d.finish(func() int {
		if d.hasEvent("task.failed", "Update Failed.") {
			return 2
		}
		return 3
	})
	if !d.hasEvent("task.failed", "Update Failed.") {
		d.Errorf("%s: the failure is not recorded", d.id)
	}
}

// TestSwupdate updates devices that run an unmodified swupdate through a pool, while faults happen to them. The artifact server must never count
// more devices in the external system than the capacity plus the devices whose lease ended while they worked. Each of these devices must be
// recorded.
//
// With -short, each fault but the last two happens to one device. Otherwise there are 20 devices, each in a network of its own.
func TestSwupdate(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		f := startFleet(t, 2, 4*time.Second)
		f.update(f.newDevices(len(faults()) - 2))
		return
	}
	f := startFleet(t, 3, 8*time.Second)
	devices := f.newDevices(20)
	for _, d := range devices {
		d.isolate()
	}
	f.update(devices)
	if inside, _ := f.artifacts.counts(); inside < f.capacity {
		t.Errorf("only %d devices were inside at once", inside)
	}
}

// newDevices returns devices that meet the faults in turn.
func (f *fleet) newDevices(count int) []*device {
	f.Helper()
	devices := make([]*device, count)
	for i := range devices {
		devices[i] = f.newDevice(fmt.Sprintf("device-%02d", i))
	}
	return devices
}

// update updates the devices. Each device meets one fault: the first device the first fault, and so on. After the last fault, the first follows.
func (f *fleet) update(devices []*device) {
	f.Helper()
	all := faults()
	var running sync.WaitGroup
	for i, d := range devices {
		fault := all[i%len(all)]
		f.artifacts.serve(d.id, time.Duration(fault.leases*float64(f.lease)), fault.isCut, d.inside)
		d.batch = f.queueBatch(d.id)
		running.Go(func() {
			fault.run(d)
			d.halt()
			if got := f.taskState(d.id); got != fault.want {
				f.Errorf("%s (%s): %s, want %s", d.id, fault.name, got, fault.want)
			}
		})
	}
	running.Wait()
	f.checkInside(devices)
	if f.Failed() {
		f.Logf("the log of the dispatcher:\n%s", f.log.String())
	}
}

// checkInside checks the number of devices that were in the external system at the same time.
func (f *fleet) checkInside(devices []*device) {
	f.Helper()
	lapsed, overruns := 0, 0
	for _, d := range devices {
		lapsed += min(1, len(f.events(d.id, "task.lapsed")))
		overruns += len(f.events(d.id, "device.overrun"))
	}
	inside, downloads := f.artifacts.counts()
	f.Logf("%d devices, %d slots, at most %d inside, %d downloads, %d devices with an ended lease, %d overruns, %d restarts of swupdate", len(devices), f.capacity, inside, downloads, lapsed, overruns, f.restarts.Load())
	if inside > f.capacity+lapsed {
		f.Errorf("%d devices were inside, with %d slots and %d devices whose lease had ended", inside, f.capacity, lapsed)
	}
}
