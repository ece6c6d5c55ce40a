package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// arrivedReport is a report of the device as the scripted server received it.
type arrivedReport struct {
	report
	arrivedAt     time.Time
	devicesInside int // number of devices inside when the report arrived
}

// deviceScene is one simulated device, an external system, and a server that answers as a script says.
type deviceScene struct {
	t        *testing.T
	external *External
	fleet    *Fleet
	reports  chan arrivedReport
	began    time.Time // before the device sent its first report
}

// startScene starts a device and a server that follows a script: answer returns the answer to the n-th report,
// counted from 1, or nil to close the connection.
func startScene(t *testing.T, faults Faults, answer func(n int, r report) any) *deviceScene {
	t.Helper()
	return startSceneResending(t, time.Minute, faults, answer) // a slow machine must not make the device report again
}

// startSceneResending does the same as startScene. resend is the time after which the device sends an unanswered
// report again.
func startSceneResending(t *testing.T, resend time.Duration, faults Faults, answer func(n int, r report) any) *deviceScene {
	t.Helper()
	s := &deviceScene{t: t, external: newTestExternal(t, 1, nil, nil), reports: make(chan arrivedReport, 1000), began: time.Now()}
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var h arrivedReport
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &h.report); err != nil {
			t.Errorf("report %.100q: %v", body, err)
		}
		h.arrivedAt, h.devicesInside = time.Now(), s.external.Stats().Inside
		select {
		case s.reports <- h:
		case <-t.Context().Done(): // the test reads no more reports; without this case, the server could not close
		}
		switch a := answer(int(n.Add(1)), h.report).(type) {
		case nil:
			panic(http.ErrAbortHandler)
		case int:
			w.WriteHeader(a)
		default:
			writeJSON(w, http.StatusOK, a)
		}
	}))
	server.Config.ErrorLog = nil
	fleet := newFleet(Config{
		URL: server.URL, FleetToken: testFleetToken, Devices: 1, Pool: "sim",
		Work: time.Millisecond, Period: 30 * time.Millisecond, ResendAfter: resend, FirstRetry: 5 * time.Millisecond,
		Faults: faults, Seed: 1,
	}, s.external.Addr(), nil, newLeases())
	s.fleet = fleet
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fleet.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		server.Close()
		if got := s.external.Stats().Inside; got != 0 {
			t.Errorf("inside %d after the fleet ended", got)
		}
	})
	return s
}

// nextReport waits for the next report of the device.
func (s *deviceScene) nextReport() arrivedReport {
	s.t.Helper()
	select {
	case h := <-s.reports:
		return h
	case <-time.After(10 * time.Second):
		s.t.Fatal("no report")
		return arrivedReport{}
	}
}

// waitForReport waits for a report for which the function fits returns true, and returns the report.
func (s *deviceScene) waitForReport(fits func(arrivedReport) bool) arrivedReport {
	s.t.Helper()
	for range 1000 {
		if h := s.nextReport(); fits(h) {
			return h
		}
	}
	s.t.Fatal("no such report")
	return arrivedReport{}
}

func hasResult(h arrivedReport) bool { return len(h.Results) > 0 }

// idleReply returns a reply that grants no task and answers every result and every running task in the report r.
func idleReply(r report) map[string]any {
	var acks, renewals []any
	for _, e := range r.Results {
		acks = append(acks, map[string]any{"task": e.Task, "token": e.Token, "outcome": "recorded"})
	}
	for _, e := range r.Running {
		renewals = append(renewals, map[string]any{"task": e.Task, "token": e.Token, "lease_ms": 60_000})
	}
	return map[string]any{"re": r.ID, "reason": "none", "report_after_ms": 20, "acks": acks, "renewed": renewals}
}

// grantReply returns a reply like idleReply that also grants task 7 with the token 70.
func grantReply(r report, leaseMS, workMS int64) map[string]any {
	a := idleReply(r)
	a["reason"] = "granted"
	a["task"] = map[string]any{
		"id": 7, "token": 70, "pool": "sim", "slot": 0, "lease_ms": leaseMS, "payload": map[string]any{"work_ms": workMS},
	}
	return a
}

// expectBetween checks the time from the sending of the first report to the time happened. The exact time of the sending
// is not known. It lies between s.began and arrived, because a busy machine may deliver the report late.
func (s *deviceScene) expectBetween(minElapsed time.Duration, arrived, happened time.Time, maxElapsed time.Duration) {
	s.t.Helper()
	if longest, shortest := happened.Sub(s.began), happened.Sub(arrived); longest < minElapsed || shortest > maxElapsed {
		s.t.Errorf("%s to %s after the first report, want %s to %s", shortest, longest, minElapsed, maxElapsed)
	}
}
