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

// heard is a report as a scripted server received it.
type heard struct {
	report
	at     time.Time
	inside int // number of devices inside when the report arrived
}

// scene is one device, an external system and a server that follows a script.
type scene struct {
	t        *testing.T
	external *External
	fleet    *Fleet
	reports  chan heard
	began    time.Time // before the device sent its first report
}

// play starts a device against a script. answer returns the answer to the n-th report, counted from 1, or nil to close the connection.
func play(t *testing.T, faults Faults, answer func(n int, r report) any) *scene {
	t.Helper()
	return stage(t, time.Minute, faults, answer) // a slow machine must not make the device report again
}

// stage is play with a given re-send time.
func stage(t *testing.T, resend time.Duration, faults Faults, answer func(n int, r report) any) *scene {
	t.Helper()
	s := &scene{t: t, external: newTestExternal(t, 1, nil, nil), reports: make(chan heard, 1000), began: time.Now()}
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var h heard
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &h.report); err != nil {
			t.Errorf("report %.100q: %v", body, err)
		}
		h.at, h.inside = time.Now(), s.external.Stats().Inside
		select {
		case s.reports <- h:
		case <-t.Context().Done(): // the test reads no more: the server could not close
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
		Work: time.Millisecond, Period: 30 * time.Millisecond, Resend: resend, Retry: 5 * time.Millisecond,
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

// next returns the next report of the device.
func (s *scene) next() heard {
	s.t.Helper()
	select {
	case h := <-s.reports:
		return h
	case <-time.After(10 * time.Second):
		s.t.Fatal("no report")
		return heard{}
	}
}

// until returns the first report for which fits returns true.
func (s *scene) until(fits func(heard) bool) heard {
	s.t.Helper()
	for range 1000 {
		if h := s.next(); fits(h) {
			return h
		}
	}
	s.t.Fatal("no such report")
	return heard{}
}

func hasResult(h heard) bool { return len(h.Results) > 0 }

// idle returns a reply without a task that answers every result and running task.
func idle(r report) map[string]any {
	var acks, renewals []any
	for _, e := range r.Results {
		acks = append(acks, map[string]any{"task": e.Task, "token": e.Token, "outcome": "recorded"})
	}
	for _, e := range r.Running {
		renewals = append(renewals, map[string]any{"task": e.Task, "token": e.Token, "lease_ms": 60_000})
	}
	return map[string]any{"re": r.ID, "reason": "none", "report_after_ms": 20, "acks": acks, "renewed": renewals}
}

// granting is idle with a grant of task 7, token 70.
func granting(r report, leaseMS, workMS int64) map[string]any {
	a := idle(r)
	a["reason"] = "granted"
	a["task"] = map[string]any{
		"id": 7, "token": 70, "pool": "sim", "slot": 0, "lease_ms": leaseMS, "payload": map[string]any{"work_ms": workMS},
	}
	return a
}

// between checks the time from the sending of the first report until happened. The exact time of the sending is unknown, but it lies
// between s.began and arrived: a busy machine delivers the report late.
func (s *scene) between(least time.Duration, arrived, happened time.Time, most time.Duration) {
	s.t.Helper()
	if longest, shortest := happened.Sub(s.began), happened.Sub(arrived); longest < least || shortest > most {
		s.t.Errorf("%s to %s after the first report, want %s to %s", shortest, longest, least, most)
	}
}
