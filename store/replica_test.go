package store_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestReplicas checks that a replica is listed from its first heartbeat until it is removed. A replica also disappears after an hour
// without a heartbeat, but this is not tested here.
func TestReplicas(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		reaped := 3 * time.Second
		a := store.Heartbeat{ID: "a", Host: "one", Address: ":8080", Version: "1.2", Uptime: time.Minute, State: []byte(`{"x":1}`), Tallies: []byte(`{"p":[1]}`)}
		b := store.Heartbeat{ID: "b", Host: "two", Version: "1.3", Uptime: time.Second, SinceReap: &reaped, State: []byte(`{}`), Tallies: []byte(`{}`)}
		l.must(l.RecordHeartbeat(l.Context(), a))
		l.must(l.RecordHeartbeat(l.Context(), b))
		list, now, err := l.Replicas(l.Context())
		l.must(err)
		if len(list) != 2 || list[0].ID != "a" || list[0].Address != ":8080" || list[0].Reaped != nil || string(list[0].State) != `{"x":1}` || list[1].Version != "1.3" {
			l.Fatalf("replicas: %+v", list)
		}
		if since := list[0].Seen.Sub(list[0].Started); since < time.Minute-time.Millisecond || list[1].Reaped == nil || now.Before(list[1].Seen) {
			l.Errorf("times: %+v at %v", list, now)
		}
		started := list[0].Started
		a.Uptime, a.Tallies = 2*time.Minute, []byte(`{"p":[2]}`)
		l.must(l.RecordHeartbeat(l.Context(), a))
		list, _, err = l.Replicas(l.Context())
		l.must(err)
		if !list[0].Started.Equal(started) {
			l.Errorf("started at %v, then at %v", started, list[0].Started)
		}
		tallies, err := l.ReplicaTallies(l.Context())
		l.must(err)
		counted := map[string]string{}
		for _, one := range tallies {
			counted[one.Replica] = string(one.Counts)
		}
		if counted["a"] != `{"p":[2]}` || counted["b"] != `{}` {
			l.Errorf("tallies: %v", counted)
		}
		l.must(l.RemoveReplica(l.Context(), "a"))
		if list, _, err = l.Replicas(l.Context()); err != nil || len(list) != 1 || list[0].ID != "b" {
			l.Errorf("after a ended: %+v, %v", list, err)
		}
	})
}
