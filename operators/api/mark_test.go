package api_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestMarksAreShownBesideTheTruth checks what the API shows about a mark in Redis, which says that a device has work. The device and its
// task must show the mark next to the state in the ledger, even if the mark was removed by hand.
func TestMarksAreShownBesideTheTruth(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client := backends.OpenRedis(t, servers.RedisAt{Addr: server.Addr()}).Client
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.Marks = marks.NewHashes(client) })
	b.store.OnNews(b.Dispatcher.Marks.FollowCommit)
	follow := func() {
		b.Must(b.Dispatcher.Marks.FollowNews(t.Context()))
	}
	expect := func(what string, want *operators.Mark, trouble bool) {
		t.Helper()
		for _, path := range []string{"/v1/devices/d-1", "/v1/tasks/1/why"} {
			var got struct{ Mark *operators.Mark }
			b.Get(path).Expect(200).Decode(&got)
			if (got.Mark == nil) != (want == nil) || want != nil && *got.Mark != *want || (got.Mark.DescribeTrouble() != "") != trouble {
				t.Errorf("%s: %s: %+v, want %+v", what, path, got.Mark, want)
			}
		}
	}
	b.PutPool("p", `{"capacity":1}`)
	b.createDevice("d-1")
	b.CreateBatch(newBatchBody)
	follow()
	expect("with a task", &operators.Mark{Present: true, Trusted: true, HasWork: true}, false)
	for _, key := range server.Keys() {
		server.HDel(key, "d-1")
	}
	expect("a mark by hand", &operators.Mark{Trusted: true, HasWork: true}, true)
	server.FlushAll()
	expect("all marks are lost", &operators.Mark{HasWork: true}, true)
	follow()
	b.Call("POST", "/v1/tasks/1/cancel", adminToken, nil).Expect(200)
	expect("cancelled", &operators.Mark{Present: true, Trusted: true}, true)
	server.SetError("LOADING for the test")
	expect("Redis does not answer", nil, false)
}
