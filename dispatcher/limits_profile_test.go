package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/store"
)

const twoADevice = `[{"name":"per-device","per":"device","algorithm":"sliding","windows":[{"max":2,"per_ms":3600000}]}]`

func (b *bench) profile(name, policies string) {
	b.t.Helper()
	_, _, err := b.store.PutProfile(b.ctx, "test", name, json.RawMessage(policies))
	b.must(err)
}

// profiled registers a device with a profile.
func (b *bench) profiled(id, profile string) {
	b.t.Helper()
	_, err := b.store.CreateDevice(b.ctx, "test", id, store.DeviceSpec{Profile: profile}, []byte(id), nil)
	b.must(err)
}

// runs reports as the device, expects its next task and sends the result.
func (b *bench) runs(device string) {
	b.t.Helper()
	task := b.granted(device)
	body := fmt.Sprintf(`{"id":"r","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token)
	if acks := b.report(device, body).Acks; len(acks) != 1 || acks[0].Outcome != devices.OutcomeRecorded {
		b.t.Fatalf("%s: acks %+v", device, acks)
	}
}

// TestProfilesLimitDevicesOverAllBatches checks that the policies of a profile apply only to its devices, in
// all batches, and that `why` names them. Changes apply at once and count earlier starts. The policies still
// apply after Redis lost all data.
func TestProfilesLimitDevicesOverAllBatches(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("a", 9, time.Minute)
		b.profile("slow", twoADevice)
		b.profile("fast", strings.Replace(twoADevice, `"max":2`, `"max":4`, 1))
		b.profiled("d1", "slow")
		b.profiled("d2", "")
		for range 5 { // each batch has one task for each device
			b.batch("a", nil, "d1", "d2")
		}
		for range 5 {
			b.runs("d2")
		}
		b.runs("d1")
		b.runs("d1")
		reply := b.expectReason("d1", `{"id":"1"}`, devices.ReasonLimited)
		if reply.ReportAfterMS < 1000 {
			b.t.Errorf("report after %d ms", reply.ReportAfterMS)
		}
		b.expectHeld(0)
		waiting := b.tasksOf("d1")[4]
		e := b.expectWhy(waiting, []decision.Code{decision.CodeLimited}, "per-device", "profile slow", "2 per 1h0m0s", "device=d1")
		if !strings.Contains(e.Causes[0].Remedy, "dispatcher profiles put slow --limits") {
			b.t.Errorf("remedy %q", e.Causes[0].Remedy)
		}
		b.wipe(9)
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.profile("slow", strings.Replace(twoADevice, `"max":2`, `"max":3`, 1))
		other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore, Limits: policies.LimitsOf(limits.New(b.redis)), FleetTokens: []string{"f"}})
		mine := b.Dispatcher
		b.Dispatcher = other // another replica knows the change of this one at once
		b.runs("d1")
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.Dispatcher = mine
		_, err := b.store.ChangeDevice(b.ctx, "test", "d1", func(d *store.DeviceSpec) error { d.Profile = "fast"; return nil })
		b.must(err)
		b.runs("d1") // the fourth start: the starts under the other profile count, too
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.expectWhy(b.tasksOf("d1")[4], []decision.Code{decision.CodeLimited}, "profile fast", "4 per 1h0m0s")
	}, unhurried)
}

// TestProfilePoolAndBatchTogether checks that a start is counted only if the policies of pool, batch and
// profile all allow it.
func TestProfilePoolAndBatchTogether(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.limitedPool(9) // one start an hour for each account
		b.profile("slow", twoADevice)
		for id, account := range map[string]string{"d1": "x", "d2": "x"} {
			_, err := b.store.CreateDevice(b.ctx, "test", id, store.DeviceSpec{Tags: map[string]string{"account": account}, Profile: "slow"}, []byte(id), nil)
			b.must(err)
		}
		b.batch("a", func(s *store.Batch) { s.Limits = json.RawMessage(twoAlike) }, "d1", "d2", "d2", "d2")
		b.runs("d1")
		for range 3 { // the policy of the pool refuses, so the profile counts nothing
			b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		}
		e := b.expectWhy(b.tasksOf("d2")[0], []decision.Code{decision.CodeLimited}, "per-account", "pool a")
		if actions := e.Causes[0].Actions; len(actions) != 1 || actions[0].Subject != decision.OfPool || strings.Contains(e.Causes[0].Remedy, "batches set") {
			b.t.Errorf("to change what did not refuse is offered: %+v", e.Causes[0])
		}
		b.changePool("", func(p *store.PoolSpec) { p.Limits = nil })
		b.runs("d2")
		b.runs("d2")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		e = b.expectWhy(b.tasksOf("d2")[2], []decision.Code{decision.CodeLimited}, "per 1h0m0s")
		if actions := e.Causes[0].Actions; len(actions) != 1 || !strings.Contains(e.Causes[0].Detail, string(actions[0].Subject)+" "+actions[0].ID) {
			b.t.Errorf("another one refused than is offered: %+v", e.Causes[0])
		}
	}, unhurried)
}

// TestAnOutageDoubtsOnlyWhatItLetPass checks which rules are filled again after an outage: only rules that
// let a start pass while they could not be checked, even if the start is old.
func TestAnOutageDoubtsOnlyWhatItLetPass(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	b := onServers(t, unhurried, mayLose, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	loses := b.lossy()
	b.limitedPool(9)
	b.changePool("", func(p *store.PoolSpec) {
		p.Limits = json.RawMessage(strings.Replace(oneAnHour, `"per":`, `"on_error":"open","per":`, 1))
	})
	b.profile("slow", oneAnHour)
	for d, account := range map[string]string{"d1": "x", "d2": "y", "d3": "y"} {
		b.device(d, account)
	}
	b.profiled("d4", "slow") // it waits during the outage
	b.batch("a", nil, "d1", "d2", "d3", "d4")
	b.granted("d1") // Redis knows the rule now
	loses.deaf.Store(true)
	b.granted("d2")
	b.expectReason("d4", `{"id":"1"}`, devices.ReasonUnavailable)
	loses.deaf.Store(false)
	b.ageing(t, 2*time.Minute)
	passed.Store(int64(2 * time.Minute))
	for i := range 2 {
		done, err := b.Policies.SettleAll(b.ctx)
		b.must(err)
		if done.Doubted != 1-i {
			t.Errorf("pass %d: %+v", i, done)
		}
	}
	b.expectReason("d3", `{"id":"1"}`, devices.ReasonLimited)
}

// TestProfilesAreSettled checks that another replica counts a start that a replica could not settle.
func TestProfilesAreSettled(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		loses := b.lossy()
		b.pool("a", 9, time.Minute)
		b.profile("slow", strings.Replace(oneAnHour, "tags.account", "pool", 1))
		b.profiled("d1", "slow")
		b.profiled("d2", "slow")
		b.batch("a", nil, "d1", "d2")
		loses.lose.Store(true)
		b.granted("d1")
		owners, err := b.store.Limited(b.ctx)
		b.must(err)
		if len(owners) != 1 || owners[0].Pool != "a" || owners[0].Profile != "slow" || owners[0].Batch != 0 || len(owners[0].Limits) == 0 {
			b.t.Errorf("%+v", owners)
		}
		other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore, Limits: policies.LimitsOf(limits.New(b.redis))})
		done, err := other.Policies.SettleAll(b.ctx)
		b.must(err)
		if done.Pools != 1 || done.Counted != 1 {
			b.t.Errorf("settled %+v", done)
		}
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		// If the start were not counted, only its reservation would refuse, and only for seconds.
		if e := b.why(b.tasksOf("d2")[0]); e.Causes[0].Until.Sub(e.At) < 50*time.Minute {
			b.t.Errorf("not counted: %+v", e.Causes)
		}
	}, unhurried, mayLose)
}
