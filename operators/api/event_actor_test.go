package api_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// reapAll ends all grants as the pass reaper does after the end of their leases.
func (b *testAPI) reapAll() {
	b.Helper()
	clock, err := b.store.LeaseClock(b.Context())
	b.Must(err)
	cutoffs := store.LapseCutoffs{}
	for _, length := range clock.Lengths {
		cutoffs[length] = time.Now().Add(24 * time.Hour)
	}
	settle := func(store.EndedGrantFacts) store.NextTaskState {
		return store.NextTaskState{State: store.TimedOut, Counted: true}
	}
	_, err = b.store.Reap(b.Context(), cutoffs, 10, settle)
	b.Must(err)
}

// actorsOf returns the kinds of the events that match query, each with its actor and the kind of its actor.
func (b *testAPI) actorsOf(query string) (texts []string) {
	b.Helper()
	for _, e := range listField(b.Get("/v1/events?order=oldest&"+query).Expect(200).Object(), "events") {
		event := asObject(e)
		texts = append(texts, fmt.Sprint(event["kind"], " ", event["actor_kind"], " ", event["actor"]))
	}
	return texts
}

// TestActorsOfOneNameAreToldApart checks the events of a device with the name of a part of the dispatcher, and of a device with the name of
// an operator. Lists, CSV and the live stream must show different kinds of actors.
func TestActorsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":2}`)
		b.CreateBatch(`{"pool":"p","devices":["reaper","carol"]}`)
		b.ReportUntilGranted("reaper")
		b.reapAll()
		deviceToken := b.createDevice("bob")
		carol, _ := b.Call("POST", "/v1/tokens", adminToken, `{"name":"carol","role":"operator"}`).Expect(201).Object()["token"].(string)
		task := b.ReportUntilGranted("carol").ID
		b.Call("POST", fmt.Sprintf("/v1/tasks/%d/cancel", task), carol, nil).Expect(200)
		b.Call("GET", "/v1/pools", carol+"x", nil).ExpectProblem(401, "unauthenticated")
		b.Call("GET", "/v1/pools", deviceToken, nil).ExpectProblem(403, "forbidden")
		for query, want := range map[string][]string{
			"actor=reaper":                     {"task.granted device reaper", "task.lapsed program reaper"},
			"actor=reaper&actor_kind=program":  {"task.lapsed program reaper"},
			"actor=reaper&actor_kind=device":   {"task.granted device reaper"},
			"actor=carol&actor_kind=operator":  {"task.cancel_asked operator carol"},
			"actor=carol&actor_kind=device":    {"task.granted device carol"},
			"kind=access.refused":              {"access.refused unknown nobody", "access.refused device bob"},
			"kind=pool.created":                {"pool.created operator bootstrap"},
			"actor_kind=program":               {"task.lapsed program reaper"},
			"actor_kind=operator&device=carol": {"task.cancel_asked operator carol"},
		} {
			if got := b.actorsOf(query); !slices.Equal(got, want) {
				b.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		b.Get("/v1/events?actor_kind=person").ExpectProblem(422, "invalid_field")
		rows := b.getWithAccept("/v1/events?actor=reaper&order=oldest", csvType).Expect(200).CSVRows()
		if len(rows) != 3 || rows[0][3] != "actor" || rows[0][10] != "actor_kind" || rows[1][10] != "device" || rows[2][10] != "program" {
			b.Errorf("CSV: %q", rows)
		}
		stream := b.openEventStream("/v1/events?actor=reaper&actor_kind=program", adminToken, "0")
		if e := stream.nextEvent(); e["actor_kind"] != "program" || e["kind"] != "task.lapsed" {
			b.Errorf("stream: %v", e)
		}
	})
}
