package devices_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// report has the fields of a report that the tests read.
type report struct {
	ID      string
	Results []struct {
		Task, Token int64
		Status      string
	}
	Running []struct{ Task, Token int64 }

	hasNewSuccess bool // it has a result of a successful task that no earlier report had
}

// reply has the fields of a reply that the tests read.
type reply struct {
	Re     string
	Reason string
	HeldMS int64 `json:"held_ms"`
	Acks   []struct {
		Task, Token int64
		Outcome     string
	}
	Renewed []struct {
		Task, Token int64
		LeaseMS     int64 `json:"lease_ms"`
	}
	Cancel []struct{ Task, Token int64 }
	Task   *struct {
		ID, Token int64
		LeaseMS   int64 `json:"lease_ms"`
		Payload   struct{ Seconds float64 }
	}
}

// If one device sends more than maxReportRate reports in a second, it counts as a loop without a pause.
const maxReportRate = 20

// After maxOutcomes delivered outcomes of a result, a device must no longer report this result. It may miss the first
// outcomes, because it is killed or has closed the connection.
const maxOutcomes = 4

// traffic records what devices and the server say to each other, and what violates the protocol.
type traffic struct {
	mu       sync.Mutex
	arrived  map[string]time.Time // when a report arrived at the proxy, by device and report id
	bodies   map[string][]byte    // the first report with an id
	recent   map[string][]time.Time
	statuses map[grantKey]string    // of the reported results
	unacked  map[grantKey]bool      // reported, and no outcome was delivered since
	outcomes map[grantKey][]string  // what the server answered to a result
	received map[grantKey]int       // how many outcomes of a result were delivered
	leases   map[grantKey]time.Time // the latest end of the lease by delivered replies
	cancels  map[grantKey]time.Time // when the first cancel was delivered
	problems []string
	began    time.Time
	log      []string // what happened, printed if the trial fails
}

func newTraffic() *traffic {
	return &traffic{
		began:   time.Now(),
		arrived: map[string]time.Time{}, bodies: map[string][]byte{}, recent: map[string][]time.Time{}, statuses: map[grantKey]string{},
		unacked: map[grantKey]bool{}, outcomes: map[grantKey][]string{}, received: map[grantKey]int{},
		leases: map[grantKey]time.Time{}, cancels: map[grantKey]time.Time{},
	}
}

// addNote adds a line to the log.
func (t *traffic) addNote(format string, values ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.log = append(t.log, fmt.Sprintf("%6.2f "+format, append([]any{time.Since(t.began).Seconds()}, values...)...))
}

// addViolation records that a rule was violated.
func (t *traffic) addViolation(format string, values ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLine(format, values...)
}

func (t *traffic) addLine(format string, values ...any) {
	t.problems = append(t.problems, fmt.Sprintf(format, values...))
}

// recordReport records a report that arrives at the proxy.
func (t *traffic) recordReport(device string, body []byte) report {
	t.mu.Lock()
	defer t.mu.Unlock()
	var r report
	if err := json.Unmarshal(body, &r); err != nil || r.ID == "" {
		t.addLine("%s sent a report that is not JSON or has no id (%v): %.100s", device, err, body)
		return r
	}
	id, now := device+"/"+r.ID, time.Now()
	if first, repeated := t.bodies[id]; !repeated {
		t.arrived[id], t.bodies[id] = now, body
	} else if !bytes.Equal(first, body) {
		t.addLine("%s used the report id %s twice", device, r.ID)
	}
	last := append(t.recent[device], now)
	if len(last) > maxReportRate {
		last = last[1:]
		if now.Sub(last[0]) < time.Second {
			t.addLine("%s sent %d reports in %s", device, maxReportRate, now.Sub(last[0]))
			last = nil
		}
	}
	t.recent[device] = last
	for _, result := range r.Results {
		grant := grantKey{result.Task, result.Token}
		if earlier := t.statuses[grant]; earlier != "" && earlier != result.Status {
			t.addLine("%s reported token %d as %s, and later as %s", device, result.Token, earlier, result.Status)
		}
		if t.received[grant] == maxOutcomes {
			t.addLine("%s still reports token %d after %d outcomes: %v", device, result.Token, maxOutcomes, t.outcomes[grant])
		}
		r.hasNewSuccess = r.hasNewSuccess || t.statuses[grant] == "" && result.Status == "succeeded"
		t.statuses[grant], t.unacked[grant] = result.Status, true
	}
	return r
}

// recordAnswer records a reply that the server has sent. It may still be lost.
func (t *traffic) recordAnswer(body []byte) reply {
	var r reply
	_ = json.Unmarshal(body, &r) // the body of an error is no reply
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range r.Acks {
		grant := grantKey{a.Task, a.Token}
		t.outcomes[grant] = append(t.outcomes[grant], a.Outcome)
	}
	return r
}

// recordDelivery records a reply just before it is delivered to the device.
func (t *traffic) recordDelivery(device string, r reply) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range r.Acks {
		delete(t.unacked, grantKey{a.Task, a.Token})
		t.received[grantKey{a.Task, a.Token}]++
	}
	for _, c := range r.Cancel {
		if grant := (grantKey{c.Task, c.Token}); t.cancels[grant].IsZero() {
			t.cancels[grant] = time.Now()
		}
	}
	sent, isKnown := t.arrived[device+"/"+r.Re]
	if !isKnown {
		return
	}
	extend := func(grant grantKey, leaseMS int64) {
		if end := sent.Add(time.Duration(leaseMS+r.HeldMS) * time.Millisecond); end.After(t.leases[grant]) {
			t.leases[grant] = end
		}
	}
	for _, n := range r.Renewed {
		extend(grantKey{n.Task, n.Token}, n.LeaseMS)
	}
	if r.Task != nil {
		extend(grantKey{r.Task.ID, r.Task.Token}, r.Task.LeaseMS)
	}
}

// unackedResults returns the results that were reported and for which no outcome was delivered since.
func (t *traffic) unackedResults() []grantKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.unacked))
}

// resultStatus returns the status under which a grant was reported, and the outcomes that the server answered.
func (t *traffic) resultStatus(grant grantKey) (status string, outcomes []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.statuses[grant], slices.Clone(t.outcomes[grant])
}

// leavingDelay is the longest time after the end of its lease that a device may be in the external system. It covers a busy machine, and is
// shorter than the delay of a grant by the step isolate.
const leavingDelay = 800 * time.Millisecond

// stoppingDelay is the longest time from a cancel until the device has left: a task looks once a second whether it must stop.
const stoppingDelay = 2 * time.Second

// violations returns the recorded violations, and the stays that lasted longer than their lease or a cancel.
func (t *traffic) violations(stays []stay) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := slices.Clone(t.problems)
	for _, s := range stays {
		end, isGranted := t.leases[s.grant]
		if !isGranted {
			found = append(found, fmt.Sprintf("%s entered with the token %d, which it was not granted", s.device, s.grant.token))
		} else if late := s.left.Sub(end); late > leavingDelay {
			found = append(found, fmt.Sprintf("%s (token %d) left %s after the end of its lease", s.device, s.grant.token, late))
		}
	}
	for _, s := range stays {
		if at := t.cancels[s.grant]; !at.IsZero() && s.left.Sub(at) > stoppingDelay {
			found = append(found, fmt.Sprintf("%s (token %d) left %s after it was told to stop", s.device, s.grant.token, s.left.Sub(at)))
		}
	}
	for grant, outcomes := range t.outcomes {
		if recorded := len(outcomes) - len(slices.DeleteFunc(slices.Clone(outcomes), func(o string) bool { return o == "recorded" })); recorded > 1 {
			found = append(found, fmt.Sprintf("the server recorded token %d %d times", grant.token, recorded))
		}
	}
	return found
}
