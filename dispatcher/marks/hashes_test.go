package marks_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/marks"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// eachRedis runs a test on each kind of Redis.
func eachRedis(t *testing.T, test func(t *testing.T, h *marks.Hashes, at servers.RedisAt)) {
	t.Helper()
	var redises servers.SharedRedis // not shared with other tests: a Redis has only one set of marks
	t.Cleanup(redises.Close)
	redises.Each(t, func(t *testing.T, at servers.RedisAt) {
		t.Helper()
		test(t, marks.NewHashes(at.Client(t)), at)
	})
}

// The devices a and b are in different hashes.
const (
	a, partOfA = "a", 0xe40c292c % 256
	b          = "b"
)

func mark(t *testing.T, h *marks.Hashes, from, to int64, devices ...string) {
	t.Helper()
	if err := h.Mark(t.Context(), from, to, []marks.Devices{{Part: partOfA, Names: devices}}); err != nil {
		t.Errorf("marking from %d to %d: %v", from, to, err)
	}
}

func expect(t *testing.T, h *marks.Hashes, upto int64, marked bool) (version string) {
	t.Helper()
	sights := h.Look(t.Context(), []string{b, a})
	if s := sights[1]; s.Upto != upto || (s.Version != "") != marked {
		t.Errorf("saw %+v, want upto %d, a mark: %t", s, upto, marked)
	}
	if s := sights[0]; s.Upto != -1 || s.Version != "" {
		t.Errorf("saw %+v of a device in a hash that is not there", s)
	}
	all, err := h.Upto(t.Context())
	if err != nil || all[partOfA] != upto || all[partOfA+1] != -1 {
		t.Errorf("come to %d, %v", all[partOfA], err)
	}
	return sights[1].Version
}

// TestMarks checks the rules of the scripts. The model of the other tests has the same rules.
func TestMarks(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, h *marks.Hashes, _ servers.RedisAt) {
		t.Helper()
		expect(t, h, -1, false)
		mark(t, h, 0, 3, a)
		expect(t, h, -1, false)
		mark(t, h, -1, 3, a)
		first := expect(t, h, 3, true)
		mark(t, h, 3, 5)
		mark(t, h, 2, 4)
		if v := expect(t, h, 5, true); v != first {
			t.Error("another version of a mark that was not made again")
		}
		mark(t, h, 6, 7)
		mark(t, h, 5, 6, a)
		second := expect(t, h, 6, true)
		for _, c := range []struct {
			version string
			want    bool
		}{{first, false}, {second, true}, {second, false}} {
			if done, err := h.Unmark(t.Context(), a, c.version); err != nil || done != c.want {
				t.Errorf("taken away: %t, %v; want %t", done, err, c.want)
			}
		}
		expect(t, h, 6, false)
		mark(t, h, -1, 2, a) // the ledger lost data, so its newest news are older
		expect(t, h, 2, true)
	})
}

// TestManyMarksAtOnce checks that Mark handles hashes with thousands of devices. With a million devices, each
// hash has 4,000 devices, which one script marks.
func TestManyMarksAtOnce(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, h *marks.Hashes, at servers.RedisAt) {
		t.Helper()
		all := make([]marks.Devices, 5)
		for part := range all {
			all[part].Part = part
			for i := range 4_000 * part {
				all[part].Names = append(all[part].Names, fmt.Sprint("device-", i))
			}
		}
		if err := h.Mark(t.Context(), -1, 1, all); err != nil {
			t.Error(err)
		}
		for part := range all {
			if n := at.Client(t).HLen(t.Context(), fmt.Sprint("marks:", part)).Val(); n != int64(4_000*part+1) {
				t.Errorf("%d fields in hash %d", n, part)
			}
		}
	})
}

// TestHashesAreMarkedTogether checks that all hashes are marked except one that fails.
func TestHashesAreMarkedTogether(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, h *marks.Hashes, at servers.RedisAt) {
		t.Helper()
		client := at.Client(t)
		client.Set(t.Context(), "marks:7", "no hash", 0)
		var all []marks.Devices
		for part := range 256 {
			all = append(all, marks.Devices{Part: part, Names: []string{fmt.Sprint(part)}})
		}
		if err := h.Mark(t.Context(), -1, 1, all); !errors.Is(err, marks.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
		client.Del(t.Context(), "marks:7")
		come, err := h.Upto(t.Context())
		for part, upto := range come {
			if marked := client.HExists(t.Context(), fmt.Sprint("marks:", part), fmt.Sprint(part)).Val(); marked != (part != 7) || (upto == 1) != marked {
				t.Errorf("hash %d has come to %d, marked: %t, %v", part, upto, marked, err)
			}
		}
	})
}
