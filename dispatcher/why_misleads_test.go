package dispatcher_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// An operator releases a slot by force. For the affected task, `why` must name the operator, the reason and a command that works.
func TestWhyTellsOfAForcedRelease(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1")
		task := b.expectGrant("d1")
		_, err := b.ForceRelease(b.ctx, "a", 0, store.ForcedRelease{Actor: "ann", Reason: "the device: it hangs"})
		b.must(err)
		running := []decision.Code{decision.CodeRunning, decision.CodeToStop}
		b.expectWhy(task.ID, running, "asked to stop by ann because: the device: it hangs", "pools release a 0 --now --reason R")
		_, err = b.ForceRelease(b.ctx, "a", 0, store.ForcedRelease{Actor: "bob", Reason: "at once", AtOnce: true})
		b.must(err)
		b.expectWhy(task.ID, []decision.Code{decision.Code(store.Cancelled)}, "by bob because: at once")
	}, withLongPeriod)
}

// The counts of a policy are being rebuilt in Redis. `why` must explain this to the operator and ask nobody to act.
func TestWhyOfAPolicyThatIsFilledBlamesNobody(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(1)
		b.createAccountDevice("d1", "x")
		b.createBatch("a", nil, "d1")
		e := b.expectWhy(b.deviceTaskIDs("d1")[0], []decision.Code{decision.CodeUnavailable, decision.CodeDeviceUnseen}, "are being rebuilt")
		if strings.Contains(e.Causes[0].Remedy, "Redis") {
			b.t.Errorf("remedy %q", e.Causes[0].Remedy)
		}
	}, withLongPeriod)
}

// A task waits for a calendar policy. `why` must name the calendar period and not an earlier start. The period ends on a full minute.
func TestWhyNamesThePeriodOfACalendar(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		zone := servers.NoonZone()
		local, err := time.LoadLocation(zone)
		b.must(err)
		_, _, err = b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{
			Capacity: 9, Lease: time.Minute,
			Limits: json.RawMessage(`[{"name":"daily","per":"pool","algorithm":"calendar","period":"day","timezone":"` + zone + `","max":1}]`),
		})
		b.must(err)
		b.createBatch("a", nil, "d1", "d2")
		b.expectGrant("d1")
		reply := b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		e := b.expectWhy(b.deviceTaskIDs("d2")[0], []decision.Code{decision.CodeLimited}, "this day began at 20", ":00:00Z, and the next start is allowed at 20")
		until := e.Causes[0].Until
		if until.In(local).Format("15:04:05.000") != "00:00:00.000" || until.Sub(e.At) > 13*time.Hour {
			b.t.Errorf("opens at %s, want the next midnight of %s", until.UTC().Format(time.RFC3339Nano), zone)
		}
		if strings.Contains(e.Causes[0].Detail, "the oldest counted start") {
			b.t.Errorf("detail %q", e.Causes[0].Detail)
		}
		if l := reply.Limited; l == nil || l.Policy != "daily" || l.Until != until.UTC().Format("2006-01-02T15:04:05.000Z") {
			b.t.Errorf("the device is told %+v", l)
		}
		if more := b.expectReason("d1", `{"id":"2","accept":false}`, devices.ReasonDeclined); more.Limited != nil {
			b.t.Errorf("a device that nothing limits is told %+v", more.Limited)
		}
	}, withLongPeriod)
}

// A task waits for its turn and also for something else. `why` must show no position for it.
func TestOnlyWhoWaitsForATurnHasAPosition(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.startOther()
		b.createBatch("a", nil, "d1")
		b.expectReason("d1", `{"id":"1"}`, devices.ReasonFull)
		task := b.deviceTaskIDs("d1")[0]
		if e := b.expectWhy(task, []decision.Code{decision.CodeFull}, "at position 1"); e.Causes[0].Position != 1 {
			b.t.Errorf("position %d, want 1", e.Causes[0].Position)
		}
		b.must(b.store.SetBlocked(b.ctx, "ann", "d1", true, ""))
		e := b.expectWhy(task, []decision.Code{decision.CodeBlocked, decision.CodeFull})
		if full := e.Causes[1]; full.Position != 0 || strings.Contains(full.Detail, "position") {
			b.t.Errorf("a blocked device: %+v", full)
		}
	}, withLongPeriod)
}

// A device never reported, and its pool is full. `why` must name the device first, and must not advise a higher capacity, because a free
// slot would not help. For a device that only lacks a slot, a higher capacity is advised.
func TestAHigherCapacityIsAdvisedOnlyForWhatLacksASlot(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 1, minute)
		b.startOther()
		b.registerDevices("unseen", "seen")
		b.createBatch("a", nil, "unseen", "seen", "seen")
		b.expectReason("seen", `{"id":"1"}`, devices.ReasonFull)
		seen := b.deviceTaskIDs("seen")
		for task, want := range map[int64][]decision.Code{
			b.deviceTaskIDs("unseen")[0]: {decision.CodeDeviceUnseen, decision.CodeFull}, seen[0]: {decision.CodeFull}, seen[1]: {decision.CodeFull, decision.CodeOtherFirst},
		} {
			for _, cause := range b.expectWhy(task, want).Causes {
				isAdvised := cause.AdvisesHigherCapacity()
				if isAdvised != (cause.Code == decision.CodeFull && want[0] == decision.CodeFull) || isAdvised != strings.Contains(cause.Remedy, "capacity") {
					b.t.Errorf("%v: %+v", want, cause)
				}
			}
		}
		listed := b.listWaiting(store.TaskScope{Pool: "a"})
		if listed[0].Code != decision.CodeDeviceUnseen || !listed[0].LastSeen.IsZero() || listed[1].LastSeen.IsZero() {
			b.t.Errorf("%+v", listed)
		}
	}, withLongPeriod)
}
