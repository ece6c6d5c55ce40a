package api_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestMarksAreShownBesideTheTruth checks the mark that the device and its task show in addition to the ledger's state,
// including a mark that was removed by hand.
func TestMarksAreShownBesideTheTruth(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := backends.Redis(t, servers.RedisAt{Addr: server.Addr()}).Client
	b := embedded(t, func(s *setup) { s.dispatcher.Marks = marks.NewHashes(client) })
	b.store.OnNews(b.dispatcher.Marks.Wrote)
	follow := func() {
		if err := b.dispatcher.Marks.Follow(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want *operators.Mark, trouble bool) {
		t.Helper()
		for _, path := range []string{"/v1/devices/d-1", "/v1/tasks/1/why"} {
			var got struct{ Mark *operators.Mark }
			b.get(path).must(200).into(&got)
			if (got.Mark == nil) != (want == nil) || want != nil && *got.Mark != *want || (got.Mark.Trouble() != "") != trouble {
				t.Errorf("%s: %s: %+v, want %+v", what, path, got.Mark, want)
			}
		}
	}
	b.pool("p", `{"capacity":1}`)
	b.device("d-1")
	b.batch(newFields)
	follow()
	expect("with a task", &operators.Mark{Present: true, Believed: true, Work: true}, false)
	for _, key := range server.Keys() {
		server.HDel(key, "d-1")
	}
	expect("a mark by hand", &operators.Mark{Believed: true, Work: true}, true)
	server.FlushAll()
	expect("all marks are lost", &operators.Mark{Work: true}, true)
	follow()
	b.call("POST", "/v1/tasks/1/cancel", adminToken, nil).must(200)
	expect("cancelled", &operators.Mark{Present: true, Believed: true}, true)
	server.SetError("LOADING for the test")
	expect("Redis does not answer", nil, false)
}
