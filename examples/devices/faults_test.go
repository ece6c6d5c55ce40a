package devices_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"testing"
	"time"
)

// step is a moment at which a trial disturbs a device, once in each trial.
type step string

// The steps.
const (
	killOnGrant      step = "kill after the grant was delivered"
	killInside       step = "kill while the task runs"
	killOnLeave      step = "kill when the task has ended"
	killOnResult     step = "kill when the result is sent, and lose it"
	killBeforeAck    step = "kill when the result is recorded, and lose the reply"
	killOnAck        step = "kill after the acknowledgement was delivered"
	isolate          step = "deliver a grant late, then cut the network until the task has ended"
	replayGrant      step = "deliver a grant again after its result was acknowledged"
	restartWhileIdle step = "kill without work"
	refuse           step = "refuse a report, with a time to wait"
	wakeUp           step = "tell it to report in ten minutes, then wake it"
)

// stepsOf returns the steps of a program. Only MQTT has messages that wake a device.
func stepsOf(transport string) []step {
	steps := []step{isolate, killOnGrant, killInside, killOnLeave, killOnResult, killBeforeAck, killOnAck, replayGrant, restartWhileIdle, refuse}
	if transport == overMQTT {
		steps = append(steps, wakeUp)
	}
	return steps
}

// Times of the faults.
const (
	grantDelay     = 1500 * time.Millisecond // of the step isolate: most of a lease
	longestCut     = 8 * time.Second         // of the step isolate, if the task does not start
	longestDelay   = 300 * time.Millisecond
	retryAfter     = time.Second // of a refused report
	clockTolerance = 50 * time.Millisecond
	crossing       = 300 * time.Millisecond // a report that a wake caused may cross the answer to the report before it
)

// If a device attempts to report more than maxCutAttempts times during one cut, it counts as a loop without pauses.
const maxCutAttempts = 40

// longWait is a time of ten seconds or more. A device gets half a second instead, so that a trial is short.
var longWait = regexp.MustCompile(`"report_after_ms":[0-9]{5,}`)

var anyOutcome = regexp.MustCompile(`"outcome":"[a-z]+"`)

var anyWait = regexp.MustCompile(`"report_after_ms":[0-9]+`)

// verdict is the effect of the network on one message.
type verdict struct {
	delay    time.Duration // before anything else
	body     []byte        // what is delivered; a reply may get fields and words that the device does not know
	isLost   bool          // the connection is closed instead
	kills    bool          // the device is killed: by its report before the report is lost, by a reply after its delivery or loss
	hangs    bool          // there is no answer, and the connection stays open
	isTwice  bool          // a report arrives twice at the server
	isBusy   bool          // the proxy answers the report: report again after retryAfter
	replayed []byte        // the proxy answers the report with this old reply
	wakes    bool          // the proxy answers the report: report in ten minutes. Then it wakes the device
	cuts     bool          // the network is cut after the delivery of a reply
}

// flags describes the verdict for the log of a trial.
func (v verdict) flags() string {
	text := ""
	for name, is := range map[string]bool{"lost": v.isLost, "twice": v.isTwice, "busy": v.isBusy, "replayed": v.replayed != nil, "delayed": v.delay > 0, "hangs": v.hangs, "wakes": v.wakes} {
		if is {
			text += " [" + name + "]"
		}
	}
	return text
}

// faults decides by a seed what happens to the messages and processes of the devices of one trial.
type faults struct {
	traffic *traffic
	mayHang bool // some messages get no answer; then a device waits for 10 to 35 s
	mu      sync.Mutex
	dice    *rand.Rand
	devices map[string]*deviceFaults
}

type deviceFaults struct {
	name        string
	note        func(format string, values ...any)
	isNewer     bool   // its server is of a later version: all outcomes are words that it does not know
	steps       []step // still to come; only the first can happen next
	isCut       bool
	cutAttempts int
	cutGrant    grantKey
	busyUntil   time.Time // when the device may report again after it was told to wait; zero: at any time
	killedAt    time.Time // the last time
	wokenAt     time.Time // when a wake was delivered
	isAwaited   bool      // it was woken, and has not reported since
	grant       []byte    // the last delivered reply with a grant
	grantKey    grantKey
	replayed    []byte // the reply of the step replayNow
}

// newFaults distributes the steps over the devices. The last device gets the step isolate first.
func newFaults(seed uint64, transport string, record *traffic, devices []string) *faults {
	f := &faults{traffic: record, mayHang: !testing.Short(), dice: rand.New(rand.NewPCG(seed, 0)), devices: map[string]*deviceFaults{}}
	steps := stepsOf(transport)
	f.dice.Shuffle(len(steps)-1, func(i, j int) { steps[i+1], steps[j+1] = steps[j+1], steps[i+1] })
	for _, device := range devices {
		f.devices[device] = &deviceFaults{name: device, note: record.addNote}
	}
	f.devices[devices[0]].isNewer = true
	for i, s := range steps {
		d := f.devices[devices[len(devices)-1-i%len(devices)]]
		d.steps = append(d.steps, s)
	}
	return f
}

// nextStep returns the next step of a device. It returns "" if all steps have happened.
func (f *faults) nextStep(device string) step {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	if d.isAwaited {
		return wakeUp
	}
	if len(d.steps) > 0 {
		return d.steps[0]
	}
	return ""
}

// takeStep reports whether s is the next step of the device, and then removes this step. While the network of the device is cut, take returns
// false.
func (f *faults) takeStep(device string, s step) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.devices[device].takeStep(s)
}

func (d *deviceFaults) takeStep(s step) bool {
	if d.isCut || len(d.steps) == 0 || d.steps[0] != s {
		return false
	}
	d.note("%s: %s", d.name, s)
	d.steps = d.steps[1:]
	return true
}

// recordKill is called when the device is killed. A killed device forgets that it was asked to wait.
func (f *faults) recordKill(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].busyUntil, f.devices[device].killedAt = time.Time{}, time.Now()
}

// takeAfterWork does the same as take for a step that needs work before it. began is the time at which the work began. Work that ended because
// the device was killed does not count.
func (f *faults) takeAfterWork(device string, s step, began time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	return d.killedAt.Before(began) && d.takeStep(s)
}

// isCut reports whether the network of the device is cut. Each call counts as an attempt to report.
func (f *faults) isCut(device string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	if d.isCut {
		d.cutAttempts++
	}
	return d.isCut
}

// endCut ends the cut of a device that works on the grant. The zero grant ends any cut.
func (f *faults) endCut(device string, grant grantKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.devices[device]
	if !d.isCut || grant != d.cutGrant && grant != (grantKey{}) {
		return
	}
	d.isCut = false
	if d.cutAttempts > maxCutAttempts {
		f.traffic.addViolation("%s made %d attempts to report without a network", device, d.cutAttempts)
	}
}

// onReport decides what happens to a report.
func (f *faults) onReport(device string, r report, body []byte) verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, v := f.devices[device], verdict{body: body}
	if early := time.Until(d.busyUntil); early > clockTolerance && time.Since(d.wokenAt) > crossing {
		f.traffic.addViolation("%s reported %s earlier than it was told to", device, early)
	}
	d.busyUntil, d.isAwaited = time.Time{}, false
	isAtRest := len(r.Running) == 0
	isIdle := isAtRest && len(r.Results) == 0
	defer func() { f.traffic.addNote("%s sends%s %.300s", device, v.flags(), body) }()
	switch chance := f.dice.Float64(); {
	case d.isCut:
		v.isLost = true
	case r.hasNewSuccess && d.takeStep(killOnResult):
		v.isLost, v.kills = true, true
	case isIdle && d.takeStep(restartWhileIdle):
		v.isLost, v.kills = true, true
	case isAtRest && d.takeStep(refuse):
		v.isBusy = true
	case isAtRest && d.takeStep(replayNow):
		v.replayed = withReplyID(d.replayed, r.ID)
	case isIdle && d.takeStep(wakeUp):
		v.wakes, d.isAwaited = true, true
	case chance < 0.01:
		v.hangs = f.mayHang
	case chance < 0.06:
		v.isLost = true
	case chance < 0.14:
		v.isTwice = true
	case chance < 0.22:
		v.delay = f.randomDelay()
	case chance < 0.26 && isAtRest:
		v.isBusy = true
	}
	return v
}

// recordBusy is called before a report of the device is answered with the request to wait for retryAfter.
func (f *faults) recordBusy(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].busyUntil = time.Now().Add(retryAfter)
}

// recordWake is called when the device gets a message that asks it to report now.
func (f *faults) recordWake(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].busyUntil, f.devices[device].wokenAt = time.Time{}, time.Now()
}

// onReply decides what happens to a reply.
func (f *faults) onReply(device string, r reply, body []byte) verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, v := f.devices[device], verdict{body: body}
	chance := f.dice.Float64()
	isAck := r.records()
	defer func() { f.traffic.addNote("%s gets%s %.300s", device, v.flags(), v.body) }()
	switch {
	case d.isCut:
		v.isLost = true
	case r.Task != nil && r.Task.Payload.Seconds >= longWork && d.takeStep(isolate):
		v.delay, d.cutGrant = grantDelay, grantKey{r.Task.ID, r.Task.Token}
		v.cuts = true
	case r.Task != nil && d.takeStep(killOnGrant):
		v.kills = true
	case isAck && d.takeStep(killBeforeAck):
		v.kills, v.isLost = true, true
	case isAck && d.takeStep(killOnAck):
		v.kills = true
	case d.acknowledges(r) && d.takeStep(replayGrant):
		d.steps = append([]step{replayNow}, d.steps...)
		d.replayed = d.grant
	case chance < 0.01:
		v.hangs = f.mayHang
	case chance < 0.06:
		v.isLost = true
	case chance < 0.16:
		v.delay = f.randomDelay()
	case chance < 0.30:
		v.body = withUnknownWords(body)
	}
	if d.isNewer {
		v.body = anyOutcome.ReplaceAll(v.body, []byte(`"outcome":"archived"`))
	}
	v.body = longWait.ReplaceAll(v.body, []byte(`"report_after_ms":500`))
	if r.Task != nil && r.Task.LeaseMS < lease.Milliseconds() || len(r.Renewed) > 0 && r.Renewed[0].LeaseMS < lease.Milliseconds() {
		// A device renews its lease by its own rule, also if it is asked to report later.
		v.body = anyWait.ReplaceAll(v.body, []byte(`"report_after_ms":9000`))
	}
	if r.Task != nil && !v.isLost && !v.hangs {
		d.grant, d.grantKey = body, grantKey{r.Task.ID, r.Task.Token}
	}
	return v
}

// replayNow is the second half of the step replayGrant: the next report without a running task gets the old grant once more as its reply. Two
// concurrent reports can get such replies.
const replayNow step = "deliver the grant now"

// withReplyID returns the reply in body with the report id in its field re, so that it answers this report.
func withReplyID(body []byte, id string) []byte {
	return regexp.MustCompile(`"re":"[^"]*"`).ReplaceAllLiteral(body, fmt.Appendf(nil, `"re":%q`, id))
}

// records reports whether the reply acknowledges a result that was not acknowledged before.
func (r reply) records() bool {
	for _, a := range r.Acks {
		if a.Outcome == "recorded" {
			return true
		}
	}
	return false
}

// acknowledges reports whether the reply acknowledges the result of the last delivered grant.
func (d *deviceFaults) acknowledges(r reply) bool {
	for _, a := range r.Acks {
		if (grantKey{a.Task, a.Token}) == d.grantKey {
			return true
		}
	}
	return false
}

func (f *faults) randomDelay() time.Duration {
	return time.Duration(f.dice.Int64N(int64(longestDelay)))
}

// cutConnection cuts the network of a device until endCut, at most for longestCut.
func (f *faults) cutConnection(device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.devices[device].isCut, f.devices[device].cutAttempts = true, 0
	time.AfterFunc(longestCut, func() { f.endCut(device, grantKey{}) })
}

// withUnknownWords returns a reply with a field and a reason of later versions. A device ignores the field, and treats the reason as none.
func withUnknownWords(body []byte) []byte {
	body = bytes.Replace(body, []byte(`"reason":"none"`), []byte(`"reason":"later"`), 1)
	return bytes.Replace(body, []byte(`{`), []byte(`{"added":{"list":[1,null,"x"]},`), 1)
}
