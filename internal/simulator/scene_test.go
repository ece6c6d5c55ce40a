package simulator

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
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
	answer   func(n int, r report) any
	answered int // number of answered reports; the device sends one report at a time
}

// runScene starts a device and a server, and calls check. The function answer returns the server's answer to the n-th
// report, counted from 1, or nil to fail the request. The scene runs in the virtual time of synctest, so its durations are
// exact on a busy machine. Reports stay within the process. The external system is outside of the virtual time, which stands still during
// a call to it.
func runScene(t *testing.T, faults Faults, answer func(n int, r report) any, check func(s *deviceScene)) {
	t.Helper()
	external := newTestExternal(t, 1, nil, nil)
	synctest.Test(t, func(t *testing.T) {
		s := &deviceScene{t: t, external: external, reports: make(chan arrivedReport, 1000), answer: answer}
		s.fleet = newFleet(Config{
			URL: "http://scripted", FleetToken: testFleetToken, Devices: 1, Pool: "sim",
			Work: time.Millisecond, Period: 30 * time.Millisecond, ResendAfter: time.Minute, FirstRetry: 5 * time.Millisecond,
			Faults: faults, Seed: 1,
		}, external.Addr(), nil, newLeases())
		s.fleet.client.Transport = s
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			synctest.Wait()
			if got := external.Stats().Inside; got != 0 {
				t.Errorf("inside %d after the fleet ended", got)
			}
		}()
		go s.fleet.Run(ctx)
		check(s)
	})
}

// RoundTrip answers a report with the result of the function answer of runScene.
func (s *deviceScene) RoundTrip(r *http.Request) (*http.Response, error) {
	var h arrivedReport
	body, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(body, &h.report); err != nil {
		s.t.Errorf("report %.100q: %v", body, err)
	}
	h.arrivedAt, h.devicesInside = time.Now(), s.external.Stats().Inside
	s.reports <- h
	s.answered++
	w := httptest.NewRecorder()
	switch a := s.answer(s.answered, h.report).(type) {
	case nil:
		return nil, io.ErrUnexpectedEOF
	case int:
		w.WriteHeader(a)
	default:
		writeJSON(w, http.StatusOK, a)
	}
	return w.Result(), nil
}

// nextReport waits for the next report of the device.
func (s *deviceScene) nextReport() arrivedReport {
	s.t.Helper()
	select {
	case h := <-s.reports:
		return h
	case <-time.After(time.Hour):
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
