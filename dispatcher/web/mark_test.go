package web_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/internal/testbackends"
)

// TestADeviceShowsTroubleWithItsMark, and nothing of a mark that is as it is to be.
func TestADeviceShowsTroubleWithItsMark(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.dispatcher.Marks = marks.New(marks.Config{
		Ledger: b.store, Cache: marks.NewHashes(testbackends.Redis(t, b.redis).Client), Told: func(string) {}, Now: time.Now,
	})
	b.report("d-1", map[string]any{"accept": false})
	expect := func(shown bool) {
		t.Helper()
		if _, text, _ := b.get("/devices/d-1"); strings.Contains(text, "marks of work are not believed now") != shown {
			t.Errorf("shown: %t, want %t", !shown, shown)
		}
	}
	expect(true)
	if err := b.dispatcher.Marks.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(false)
}
