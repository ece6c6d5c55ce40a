package marks_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// runOnEachRedis runs a test once on each kind of Redis.
func runOnEachRedis(t *testing.T, test func(t *testing.T, h *marks.Hashes, at servers.RedisAt)) {
	t.Helper()
	var redises servers.SharedRedis // not shared with other tests: a Redis has only one set of marks
	t.Cleanup(redises.Close)
	redises.RunOnEach(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, marks.NewHashes(at.Client(t)), at)
	})
}

// The marks of the devices a and b are in different Redis hashes.
const (
	deviceA, partA = "a", 0xe40c292c % 256
	deviceB        = "b"
)

func markDevices(t *testing.T, h *marks.Hashes, from, to int64, devices ...string) {
	t.Helper()
	if err := h.MarkDevices(t.Context(), from, to, []marks.HashDevices{{HashIndex: partA, Names: devices}}); err != nil {
		t.Errorf("marking from %d to %d: %v", from, to, err)
	}
}

func expectReading(t *testing.T, h *marks.Hashes, position int64, wantMark bool) (version string) {
	t.Helper()
	sights := h.ReadMarks(t.Context(), []string{deviceB, deviceA})
	if s := sights[1]; s.Position != position || (s.Version != "") != wantMark {
		t.Errorf("saw %+v, want upto %d, a mark: %t", s, position, wantMark)
	}
	if s := sights[0]; s.Position != -1 || s.Version != "" {
		t.Errorf("saw %+v of a device in a hash that is not there", s)
	}
	all, err := h.ReadPositions(t.Context())
	if err != nil || all[partA] != position || all[partA+1] != -1 {
		t.Errorf("come to %d, %v", all[partA], err)
	}
	return sights[1].Version
}

// TestMarks checks the rules of the scripts that set and delete marks (a mark says that a device has work). The
// model of the other tests follows the same rules.
func TestMarks(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, h *marks.Hashes, _ servers.RedisAt) {
		t.Helper()
		expectReading(t, h, -1, false)
		markDevices(t, h, 0, 3, deviceA)
		expectReading(t, h, -1, false)
		markDevices(t, h, -1, 3, deviceA)
		first := expectReading(t, h, 3, true)
		markDevices(t, h, 3, 5)
		markDevices(t, h, 2, 4)
		if v := expectReading(t, h, 5, true); v != first {
			t.Error("another version of a mark that was not made again")
		}
		markDevices(t, h, 6, 7)
		markDevices(t, h, 5, 6, deviceA)
		second := expectReading(t, h, 6, true)
		for _, c := range []struct {
			version string
			want    bool
		}{{first, false}, {second, true}, {second, false}} {
			if done, err := h.DeleteMark(t.Context(), deviceA, c.version); err != nil || done != c.want {
				t.Errorf("taken away: %t, %v; want %t", done, err, c.want)
			}
		}
		expectReading(t, h, 6, false)
		markDevices(t, h, -1, 2, deviceA) // the ledger lost data, so its newest news are older
		expectReading(t, h, 2, true)
	})
}

// TestWaitsInMarks checks the rules of the scripts that record a wait in a mark and end it.
func TestWaitsInMarks(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, h *marks.Hashes, _ servers.RedisAt) {
		t.Helper()
		wait := marks.Wait{Pool: "p", Position: 3, Until: time.UnixMilli(1_800_000_000_000)}
		record := func(version string, want marks.Wait) {
			t.Helper()
			if err := h.RecordWaits(t.Context(), []marks.DeviceWait{{Device: deviceA, Version: version, Wait: wait}}); err != nil {
				t.Error(err)
			}
			if got := h.ReadMarks(t.Context(), []string{deviceA})[0].Wait; got != want {
				t.Errorf("the mark has the wait %+v, want %+v", got, want)
			}
		}
		record("", marks.Wait{}) // the device has no mark
		markDevices(t, h, -1, 3, deviceA)
		first := expectReading(t, h, 3, true)
		record(first, wait)
		markDevices(t, h, 3, 4, deviceA)
		record(first, marks.Wait{})
		second := expectReading(t, h, 4, true)
		record(second, wait)
		if err := h.EndWaits(t.Context(), []string{deviceA, deviceB}); err != nil {
			t.Error(err)
		}
		if expectReading(t, h, 4, true) == second {
			t.Error("the mark has its former version")
		}
		record(second, marks.Wait{})
		if done, err := h.DeleteMark(t.Context(), deviceA, second); done || err != nil {
			t.Errorf("unmarked by a former version: %t, %v", done, err)
		}
	})
}

// TestManyMarksAtOnce checks that MarkDevices can mark thousands of devices of one Redis hash. In a fleet of a million
// devices, each of the 256 hashes has 4,000 devices, which one script marks.
func TestManyMarksAtOnce(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, h *marks.Hashes, at servers.RedisAt) {
		t.Helper()
		all := make([]marks.HashDevices, 5)
		for part := range all {
			all[part].HashIndex = part
			for i := range 4_000 * part {
				all[part].Names = append(all[part].Names, fmt.Sprint("device-", i))
			}
		}
		if err := h.MarkDevices(t.Context(), -1, 1, all); err != nil {
			t.Error(err)
		}
		for part := range all {
			if n := at.Client(t).HLen(t.Context(), fmt.Sprint("marks:", part)).Val(); n != int64(4_000*part+1) {
				t.Errorf("%d fields in hash %d", n, part)
			}
		}
	})
}

// TestHashesAreMarkedTogether checks a call of MarkDevices in which one Redis hash fails: all other hashes are marked.
func TestHashesAreMarkedTogether(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, h *marks.Hashes, at servers.RedisAt) {
		t.Helper()
		client := at.Client(t)
		client.Set(t.Context(), "marks:7", "no hash", 0)
		var all []marks.HashDevices
		for part := range 256 {
			all = append(all, marks.HashDevices{HashIndex: part, Names: []string{fmt.Sprint(part)}})
		}
		if err := h.MarkDevices(t.Context(), -1, 1, all); !errors.Is(err, marks.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		client.Del(t.Context(), "marks:7")
		positions, err := h.ReadPositions(t.Context())
		for part, upto := range positions {
			if marked := client.HExists(t.Context(), fmt.Sprint("marks:", part), fmt.Sprint(part)).Val(); marked != (part != 7) || (upto == 1) != marked {
				t.Errorf("hash %d has come to %d, marked: %t, %v", part, upto, marked, err)
			}
		}
	})
}
