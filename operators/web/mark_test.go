package web_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestADeviceShowsTroubleWithItsMark checks the page of a device. A mark in Redis says that the device has work. The page must describe a
// mark that is wrong, and say nothing about a mark that is correct.
func TestADeviceShowsTroubleWithItsMark(t *testing.T) {
	t.Parallel()
	at := servers.InProcessRedis(t)
	b := startReplicaWith(t, backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db")), at, func(c *dispatcher.Config) {
		c.Marks = marks.NewHashes(backends.OpenRedis(t, at).Client)
	})
	b.sendReport("d-1", map[string]any{"accept": false})
	expect := func(shown bool) {
		t.Helper()
		if _, text, _ := b.getPage("/devices/d-1"); strings.Contains(text, "marks are not trusted now") != shown {
			t.Errorf("shown: %t, want %t", !shown, shown)
		}
	}
	expect(true)
	if err := b.dispatcher.Marks.FollowNews(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(false)
}
