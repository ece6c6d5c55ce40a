package web_test

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// TestADeviceShowsTroubleWithItsMark checks the page of a device. A mark in Redis says that the device has work. The page must describe a
// mark that is wrong, and say nothing about a mark that is correct.
func TestADeviceShowsTroubleWithItsMark(t *testing.T) {
	t.Parallel()
	at := rig.EmbeddedStores(t)
	b := startReplicaWith(t, at, func(o *rig.Options) {
		o.Dispatcher.Marks = marks.NewHashes(backends.OpenRedis(t, at.RedisAt).Client)
	})
	b.sendReport("d-1", map[string]any{"accept": false})
	expect := func(shown bool) {
		t.Helper()
		if _, text, _ := b.getPage("/devices/d-1"); strings.Contains(text, "marks are not trusted now") != shown {
			t.Errorf("shown: %t, want %t", !shown, shown)
		}
	}
	expect(true)
	b.Must(b.Dispatcher.Marks.FollowNews(t.Context()))
	expect(false)
}
