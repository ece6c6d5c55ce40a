package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestDevices(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		tags := map[string]string{"region": "ar", "quote": `"<é>`}
		d, err := l.CreateDevice(l.Context(), "op", "m:1", store.DeviceSpec{Tags: tags}, []byte("hash-1"), nil)
		l.must(err)
		want := store.Device{ID: "m:1", HasToken: true, Tags: tags, Attributes: json.RawMessage(`{}`), CreatedAt: d.CreatedAt, RegisteredBy: "op"}
		if diff := cmp.Diff(want, d); diff != "" || d.CreatedAt.IsZero() {
			l.Fatal(diff)
		}
		if _, err := l.CreateDevice(l.Context(), "op", "m:1", store.DeviceSpec{}, []byte("hash-2"), nil); !errors.Is(err, store.ErrExists) {
			l.Fatalf("the same id: %v", err)
		}
		if _, err := l.TokenByHash(l.Context(), []byte("hash-2")); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("the refused device's token: %v", err)
		}
		for range 2 {
			if d, err := l.EnsureDevices(l.Context(), "M:1"); err != nil || d[0].ID != "M:1" || d[0].LastSeen != nil {
				l.Fatalf("ensured %+v, %v", d, err)
			}
		}
		if _, err := l.Device(l.Context(), "m"); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("no device: %v", err)
		}
		page, err := l.Devices(l.Context(), store.DeviceFilter{Limit: 1})
		l.must(err)
		rest, err := l.Devices(l.Context(), store.DeviceFilter{After: page[0].ID})
		l.must(err)
		if len(page) != 1 || len(rest) != 1 || page[0].ID != "M:1" || rest[0].ID != "m:1" {
			l.Fatalf("pages %+v, %+v", page, rest)
		}
	})
}

func TestConcurrentReportsRegisterADeviceOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			if d, err := l.EnsureDevices(l.Context(), "new"); err != nil || d[0].ID != "new" {
				l.Errorf("%+v, %v", d, err)
			}
		})
	}
	wait.Wait()
	if events, err := l.Events(l.Context(), store.EventFilter{Kind: "device.created"}); err != nil || len(events) != 1 {
		l.Fatalf("events %+v, %v", events, err)
	}
}

func TestDeviceTokens(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		hash := []byte{0, 1, 0xff, '\\', 'x', 0}
		l.must(l.enroll("a", hash, nil))
		token, err := l.TokenByHash(l.Context(), hash)
		if err != nil || token.Device != "a" || token.Role != "" {
			l.Fatalf("token %+v, %v", token, err)
		}
		l.must(l.enroll("a", []byte("the reply with the first was lost"), nil))
		if _, err := l.TokenByHash(l.Context(), hash); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("the token that was replaced: %v", err)
		}
		if d, err := l.Device(l.Context(), "a"); err != nil || d.OwnToken {
			l.Fatalf("device %+v, %v before its first use", d, err)
		}
		for range 2 {
			l.must(l.MarkOwnTokens(l.Context(), "a"))
		}
		if d, err := l.Device(l.Context(), "a"); err != nil || !d.OwnToken {
			l.Fatalf("device %+v, %v after its first use", d, err)
		}
		if err := l.enroll("a", []byte("3"), nil); !errors.Is(err, store.ErrExists) {
			l.Fatalf("enrolled again: %v", err)
		}
		l.rotateToken("rotated", time.Hour)
		for _, valid := range []string{"the reply with the first was lost", "rotated"} {
			if _, err := l.TokenByHash(l.Context(), []byte(valid)); err != nil {
				l.Errorf("%q: %v", valid, err)
			}
		}
		if _, err := l.RotateDeviceToken(l.Context(), "op", "nobody", []byte("4"), 0, nil); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("no device: %v", err)
		}
	})
}

// TestEnrollingAgainMakesNoMoreEvents checks a device that never uses its own token and enrolls again with each report. Only its first
// enrollment may have an event.
func TestEnrollingAgainMakesNoMoreEvents(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for i := range 20 {
			l.must(l.enroll("a", fmt.Append(nil, i), nil))
		}
		if n := l.countEvents("device.enrolled"); n != 1 {
			l.Errorf("%d events device.enrolled, want 1", n)
		}
		if n := l.countRows("tokens"); n != 1 {
			l.Errorf("%d tokens, want 1", n)
		}
	})
}

func TestOperatorTokens(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		past, soon := time.Now().Add(-time.Second), time.UnixMilli(time.Now().Add(time.Hour).UnixMilli()).UTC()
		valid, err := l.CreateToken(l.Context(), "op", store.Token{Name: "ci", Role: "operator", ExpiresAt: &soon}, []byte("1"))
		l.must(err)
		_, err = l.CreateToken(l.Context(), "op", store.Token{Name: "old", Role: "admin", ExpiresAt: &past}, []byte("2"))
		l.must(err)
		if got, err := l.TokenByHash(l.Context(), []byte("1")); err != nil || !cmp.Equal(got, valid) || got.Role != "operator" || !got.ExpiresAt.Equal(soon) {
			l.Errorf("token %+v, %v", got, err)
		}
		if _, err := l.TokenByHash(l.Context(), []byte("2")); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("an expired token: %v", err)
		}
		if _, err := l.CreateToken(l.Context(), "op", store.Token{}, []byte("1")); !errors.Is(err, store.ErrExists) {
			l.Errorf("the same secret: %v", err)
		}
		l.exec(`UPDATE tokens SET revoked_at = {now} WHERE id = $1`, valid.ID)
		if _, err := l.TokenByHash(l.Context(), []byte("1")); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("a revoked token: %v", err)
		}
	})
}

func TestBlockingAsksTheDeviceToStop(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "a")
	l.mustGrant(ids[0], "a", "p", 0)
	if err := l.SetBlocked(l.Context(), "op", "a", true, ""); !errors.Is(err, store.ErrNotFound) {
		l.Fatalf("not registered: %v", err)
	}
	_, err := l.EnsureDevices(l.Context(), "a")
	l.must(err)
	for range 2 {
		l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
	}
	views, err := l.DeviceViews(l.Context(), []string{"a"})
	l.must(err)
	if !views[0].Device.Blocked || views[0].Grant.CancelWhy != "blocked" {
		l.Fatalf("view %+v", views[0])
	}
	l.recordResult(*views[0].Grant, store.BySuccess, "")
	l.wantStatuses(l.claimAll(l.newClaim(ids[1], "a", "p", 0)), claimLost)
	l.must(l.SetBlocked(l.Context(), "op", "a", false, ""))
	l.wantStatuses(l.claimAll(l.newClaim(ids[1], "a", "p", 0)), claimGranted)
	if events, err := l.Events(l.Context(), store.EventFilter{Device: "a", Actor: "op"}); err != nil || len(events) != 2 {
		l.Fatalf("events %+v, %v; want one each", events, err)
	}
}

func TestMergeAttributes(t *testing.T) {
	t.Parallel()
	wide := func(from, to int) string {
		var members []string
		for i := from; i < to; i++ {
			members = append(members, fmt.Sprintf(`"k%d":1`, i))
		}
		return "{" + strings.Join(members, ",") + "}"
	}
	runOnEachDialect(t, func(l *ledger) {
		_, err := l.EnsureDevices(l.Context(), "a")
		l.must(err)
		for _, c := range []struct {
			patch, want string
			fails       bool
			tooLarge    bool
		}{
			{patch: `{"firmware": "7.2", "n": 1.50, "deep": {"a": 1, "b": [1, null]}}`, want: `{"deep":{"a":1,"b":[1,null]},"firmware":"7.2","n":1.50}`},
			{patch: `{}`, want: `{"deep":{"a":1,"b":[1,null]},"firmware":"7.2","n":1.50}`},
			{patch: `{"n": null, "none": null, "deep": {"a": null, "c": {"d": null}}}`, want: `{"deep":{"b":[1,null],"c":{}},"firmware":"7.2"}`},
			{patch: `{"big": 123456789012345678901234567890, "deep": 1}`, want: `{"big":123456789012345678901234567890,"deep":1,"firmware":"7.2"}`},
			{patch: wide(0, 62), want: `{"big":123456789012345678901234567890,"deep":1,"firmware":"7.2"}`, fails: true, tooLarge: true},
			{patch: `{"long": "` + strings.Repeat("x", 8<<10) + `"}`, want: `{"big":123456789012345678901234567890,"deep":1,"firmware":"7.2"}`, fails: true, tooLarge: true},
			{patch: `[1]`, want: `{"big":123456789012345678901234567890,"deep":1,"firmware":"7.2"}`, fails: true},
			{patch: `{"big": null, "deep": null, "firmware": null}`, want: `{}`},
			{patch: `{"long": "` + strings.Repeat("&", 8000) + `"}`, want: `{"long":"` + strings.Repeat("&", 8000) + `"}`},
			{patch: `{"long": null}`, want: `{}`},
		} {
			err := l.MergeAttributes(l.Context(), "a", json.RawMessage(c.patch))
			if (err != nil) != c.fails || errors.Is(err, store.ErrTooLarge) != c.tooLarge {
				l.Errorf("%.60s: %v", c.patch, err)
			}
			if d, err := l.Device(l.Context(), "a"); err != nil || string(d.Attributes) != c.want {
				l.Errorf("%.60s: %s, %v; want %s", c.patch, d.Attributes, err, c.want)
			}
		}
		l.must(l.MergeAttributes(l.Context(), "a", json.RawMessage(wide(0, 64))))
		if err := l.MergeAttributes(l.Context(), "nobody", json.RawMessage(`{}`)); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("no device: %v", err)
		}
	})
}

func TestLastSeenOnlyMovesForward(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		for _, id := range []string{"a", "b"} {
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
		}
		at := time.UnixMilli(1_800_000_000_000).UTC()
		for _, c := range []struct{ seen, want time.Time }{{at, at}, {at.Add(-time.Hour), at}, {at.Add(time.Second), at.Add(time.Second)}} {
			l.must(l.TouchDevices(l.Context(), map[string]store.LastReport{"a": {At: c.seen}, "unknown": {At: c.seen}}))
			if d, err := l.Device(l.Context(), "a"); err != nil || d.LastSeen == nil || !d.LastSeen.Equal(c.want) {
				l.Errorf("last seen %v, %v; want %s", d.LastSeen, err, c.want)
			}
		}
		l.must(l.TouchDevices(l.Context(), nil))
		if d, err := l.Device(l.Context(), "b"); err != nil || d.LastSeen != nil {
			l.Errorf("device b: %+v, %v", d, err)
		}
		if n := l.countRows("devices"); n != 2 {
			l.Errorf("%d devices, want 2", n)
		}
	})
}

// TestReachFollowsTheLatestReport checks that the stored reach of a device (the way to notify it) is the reach of its latest report. There
// are two exceptions: two reports at about the same time, and a ledger's clock that was set back. Then a reachable device must not be
// stored as a device that only polls.
func TestReachFollowsTheLatestReport(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		now, err := l.Clock(l.Context())
		l.must(err)
		for n, c := range []struct {
			first, second time.Duration // times of the two reports relative to now; the first report is from a device that polls
			reach, want   store.Reach   // reach in the second report, and reach of the device afterwards
		}{
			{-time.Minute, 0, store.ReachPark, store.ReachPark},
			{-time.Minute, -time.Minute, store.ReachPark, store.ReachPark},
			{-time.Minute, -time.Minute - time.Second, store.ReachPush, store.ReachPush},
			{-time.Minute, -time.Minute - 3*time.Second, store.ReachPark, store.ReachNone},
			{time.Hour, 0, store.ReachPark, store.ReachPark},
		} {
			id := fmt.Sprint("d", n)
			_, err := l.EnsureDevices(l.Context(), id)
			l.must(err)
			touch := func(at time.Duration, reach store.Reach) store.Device {
				l.must(l.TouchDevices(l.Context(), map[string]store.LastReport{id: {At: now.Add(at), Reach: reach}}))
				d, err := l.Device(l.Context(), id)
				l.must(err)
				return d
			}
			touch(c.first, store.ReachNone)
			want := now.Add(max(c.first, c.second)).Truncate(time.Millisecond)
			if d := touch(c.second, c.reach); d.Reach != c.want || d.LastSeen.Sub(want).Abs() > time.Millisecond {
				l.Errorf("polls at %s, then reach %d at %s: reach %d, seen %s; want %d, %s", c.first, c.reach, c.second, d.Reach, d.LastSeen, c.want, want)
			}
			// The two reports are now written in the reverse order. The poll has the same time as the other report, or an earlier one, so
			// it must change nothing.
			if d := touch(c.second, store.ReachNone); c.first < 0 && d.Reach != c.want {
				l.Errorf("reach %d after a poll at the same time, want %d", d.Reach, c.want)
			}
		}
	})
}

// TestTagsAreFoundByTheirIndex checks that Postgres uses the index of the tags to list devices by a tag and to queue a batch for them. This
// index needs bitmap scans, which are disabled for other statements.
func TestTagsAreFoundByTheirIndex(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	for _, text := range []string{
		`INSERT INTO devices (id, created_at, tags) SELECT 'd' || i, now(), jsonb_build_object('n', i::text) FROM generate_series(1, 20000) AS i`, `ANALYZE devices`,
	} {
		_, err := l.DB().ExecContext(t.Context(), text)
		l.must(err)
	}
	scans := func(want int) {
		l.Helper()
		l.awaitCondition(func() bool {
			return l.countRows(fmt.Sprintf("pg_stat_user_indexes WHERE indexrelname = 'devices_tags' AND idx_scan >= %d", want)) == 1
		})
	}
	wanted := map[string]string{"n": "7"}
	found, err := l.Devices(t.Context(), store.DeviceFilter{Tags: wanted})
	l.must(err)
	scans(1)
	silent, err := l.SilentDevices(t.Context(), store.DeviceFilter{Tags: wanted}, time.Second, 10)
	l.must(err)
	scans(2)
	created, err := l.Store.CreateBatch(t.Context(), "op", store.Batch{Pool: "p"}, store.NewBatchTasks{Tags: wanted})
	l.must(err)
	scans(3)
	if len(found) != 1 || len(silent.Devices) != 1 || created.Total != 1 {
		t.Errorf("%v, %v and %d tasks, want d7 three times", found, silent, created.Total)
	}
}
