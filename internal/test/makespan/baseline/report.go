package baseline

import (
	"context"
	"encoding/json"
	"net/http"
)

type report struct {
	ID      string `json:"id"`
	Results []struct {
		Task   int64           `json:"task"`
		Token  int64           `json:"token"`
		Status string          `json:"status"`
		Output json.RawMessage `json:"output"`
	} `json:"results"`
	Running []struct {
		Task  int64 `json:"task"`
		Token int64 `json:"token"`
	} `json:"running"`
}

type jsonObject map[string]any

// report handles the report of a device: it stores the results, and grants the device's oldest task if the counter
// in Redis allows it. It handles one report at a time, which is fast enough for the benchmark.
func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	var up report
	if err := json.NewDecoder(r.Body).Decode(&up); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	down := jsonObject{"re": up.ID, "reason": "none", "report_after_ms": s.period.Milliseconds()}
	acks, renewed := []jsonObject{}, []jsonObject{}
	for _, e := range up.Results {
		outcome, err := s.endTask(r.Context(), e.Task, e.Status, e.Output)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		acks = append(acks, jsonObject{"task": e.Task, "token": e.Token, "outcome": outcome})
	}
	for _, e := range up.Running {
		renewed = append(renewed, jsonObject{"task": e.Task, "token": e.Token, "lease_ms": lease.Milliseconds()})
	}
	down["acks"], down["renewed"] = acks, renewed
	if err := s.grantNextTask(r.Context(), r.PathValue("device"), len(up.Running) > 0, down); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, http.StatusOK, down)
}

// endTask ends a task and frees its slot. The caller must hold mu.
func (s *Server) endTask(ctx context.Context, id int64, status string, output json.RawMessage) (outcome string, err error) {
	if id < 1 || id > int64(len(s.tasks)) {
		return "unknown", nil
	}
	t := s.tasks[id-1]
	if t.State != "dispatched" {
		return "duplicate", nil
	}
	if err := s.slots.releaseSlot(ctx); err != nil {
		return "", err
	}
	t.State, t.Output = status, output
	s.freeSlots = append(s.freeSlots, t.slot)
	return "recorded", nil
}

// takeSlotNumber returns a free slot number. If the counter in Redis admitted more tasks than there are slots, it
// returns a number that no slot has. The external system then detects the violation. The caller must hold mu.
func (s *Server) takeSlotNumber() int {
	if len(s.freeSlots) == 0 {
		return s.pool.Capacity
	}
	n := s.freeSlots[0]
	s.freeSlots = s.freeSlots[1:]
	return n
}

// grantNextTask grants the oldest task of a device. If the device already has a grant and does not work on it, the
// reply with the grant was lost, so grantNextTask sends the same grant again. The caller must hold mu.
func (s *Server) grantNextTask(ctx context.Context, device string, isWorking bool, reply jsonObject) error {
	tasks := s.waiting[device]
	for len(tasks) > 0 && tasks[0].State != "pending" && tasks[0].State != "dispatched" {
		tasks = tasks[1:]
	}
	s.waiting[device] = tasks
	if len(tasks) == 0 || isWorking {
		return nil
	}
	t := tasks[0]
	if t.State == "pending" {
		free, err := s.slots.acquireSlot(ctx, s.pool.Capacity)
		if err != nil {
			return err
		}
		if !free {
			reply["reason"] = "full"
			return nil
		}
		s.token++
		t.State, t.slot, t.token = "dispatched", s.takeSlotNumber(), s.token
	}
	reply["reason"] = "granted"
	reply["task"] = jsonObject{
		"id": t.ID, "token": t.token, "pool": "sim", "slot": t.slot, "kind": "simulated",
		"payload": t.payload, "attempt": 1, "lease_ms": lease.Milliseconds(),
	}
	return nil
}
