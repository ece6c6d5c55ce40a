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

const twoAnHourPerDevice = `[{"name":"per-device","per":"device","algorithm":"sliding","windows":[{"max":2,"per_ms":3600000}]}]`

func (b *testBench) putProfile(name, policies string) {
	b.t.Helper()
	_, _, err := b.store.PutProfile(b.ctx, "test", store.Profile{Name: name, Limits: json.RawMessage(policies)})
	b.must(err)
}

// createProfiledDevice registers a device that has this profile (a set of policies for devices).
func (b *testBench) createProfiledDevice(id, profile string) {
	b.t.Helper()
	_, err := b.store.CreateDevice(b.ctx, "test", id, store.DeviceSpec{Profile: profile}, []byte(id), nil)
	b.must(err)
}

// runNextTask sends a report of the device, expects that its next task is granted, and sends the result.
func (b *testBench) runNextTask(device string) {
	b.t.Helper()
	task := b.expectGrant(device)
	body := fmt.Sprintf(`{"id":"r","accept":false,"results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token)
	if acks := b.sendReport(device, body).Acks; len(acks) != 1 || acks[0].Outcome != devices.OutcomeRecorded {
		b.t.Fatalf("%s: acks %+v", device, acks)
	}
}

// TestProfilesLimitDevicesOverAllBatches checks the policies of a profile. They apply only to devices of the
// profile, in all batches, and `why` names them. A change applies at once, and earlier starts count. The policies
// still apply after Redis has lost all data.
func TestProfilesLimitDevicesOverAllBatches(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createPool("a", 9, time.Minute)
		b.putProfile("slow", twoAnHourPerDevice)
		b.putProfile("fast", strings.Replace(twoAnHourPerDevice, `"max":2`, `"max":4`, 1))
		b.createProfiledDevice("d1", "slow")
		b.createProfiledDevice("d2", "")
		for range 5 { // each batch has one task for each device
			b.createBatch("a", nil, "d1", "d2")
		}
		for range 5 {
			b.runNextTask("d2")
		}
		b.runNextTask("d1")
		b.runNextTask("d1")
		reply := b.expectReason("d1", `{"id":"1"}`, devices.ReasonLimited)
		if reply.ReportAfterMS < 1000 {
			b.t.Errorf("report after %d ms", reply.ReportAfterMS)
		}
		b.expectHeld(0)
		waiting := b.deviceTaskIDs("d1")[4]
		e := b.expectWhy(waiting, []decision.Code{decision.CodeLimited}, "per-device", "profile slow", "2 per 1h0m0s", "device=d1")
		if !strings.Contains(e.Causes[0].Remedy, "dispatcher profiles put slow --limits") {
			b.t.Errorf("remedy %q", e.Causes[0].Remedy)
		}
		b.wipeRedis(9)
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.putProfile("slow", strings.Replace(twoAnHourPerDevice, `"max":2`, `"max":3`, 1))
		other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore, Limits: policies.NewLimits(limits.New(b.redis)), FleetTokens: []string{"f"}})
		mine := b.Dispatcher
		b.Dispatcher = other // another replica knows the change of this one at once
		b.runNextTask("d1")
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.Dispatcher = mine
		_, err := b.store.ChangeDevice(b.ctx, "test", "d1", func(d *store.DeviceSpec) error { d.Profile = "fast"; return nil })
		b.must(err)
		b.runNextTask("d1") // the fourth start: the starts under the other profile count, too
		b.expectReason("d1", `{"id":"2"}`, devices.ReasonLimited)
		b.expectWhy(b.deviceTaskIDs("d1")[4], []decision.Code{decision.CodeLimited}, "profile fast", "4 per 1h0m0s")
	}, withLongPeriod)
}

// TestProfilePoolAndBatchTogether checks a task to which policies of its pool, its batch and its device's profile
// apply: its start is counted only if all of them allow it.
func TestProfilePoolAndBatchTogether(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		b.createLimitedPool(9) // one start an hour for each account
		b.putProfile("slow", twoAnHourPerDevice)
		for id, account := range map[string]string{"d1": "x", "d2": "x"} {
			_, err := b.store.CreateDevice(b.ctx, "test", id, store.DeviceSpec{Tags: map[string]string{"account": account}, Profile: "slow"}, []byte(id), nil)
			b.must(err)
		}
		b.createBatch("a", func(s *store.Batch) { s.Limits = json.RawMessage(twoDuplicatesAnHour) }, "d1", "d2", "d2", "d2")
		b.runNextTask("d1")
		for range 3 { // the policy of the pool refuses, so the profile counts nothing
			b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		}
		e := b.expectWhy(b.deviceTaskIDs("d2")[0], []decision.Code{decision.CodeLimited}, "per-account", "pool a")
		if actions := e.Causes[0].Actions; len(actions) != 1 || actions[0].Subject != decision.SubjectPool || strings.Contains(e.Causes[0].Remedy, "batches set") {
			b.t.Errorf("to change what did not refuse is offered: %+v", e.Causes[0])
		}
		b.changePool("", func(p *store.PoolSpec) { p.Limits = nil })
		b.runNextTask("d2")
		b.runNextTask("d2")
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		e = b.expectWhy(b.deviceTaskIDs("d2")[2], []decision.Code{decision.CodeLimited}, "per 1h0m0s")
		if actions := e.Causes[0].Actions; len(actions) != 1 || !strings.Contains(e.Causes[0].Detail, string(actions[0].Subject)+" "+actions[0].ID) {
			b.t.Errorf("another one refused than is offered: %+v", e.Causes[0])
		}
	}, withLongPeriod)
}

// TestAnOutageDoubtsOnlyWhatItLetPass checks which rules are filled again from the ledger after an outage of the limiter. These must be
// only the rules with a start that was allowed without a check during the outage, even if that start is too old to be counted again.
func TestAnOutageDoubtsOnlyWhatItLetPass(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	b := newServerBench(t, withLongPeriod, useLossyReservations, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	loses := b.lossyFake()
	b.createLimitedPool(9)
	b.changePool("", func(p *store.PoolSpec) {
		p.Limits = json.RawMessage(strings.Replace(oneAnHourPerAccount, `"per":`, `"on_error":"open","per":`, 1))
	})
	b.putProfile("slow", oneAnHourPerAccount)
	for d, account := range map[string]string{"d1": "x", "d2": "y", "d3": "y"} {
		b.createAccountDevice(d, account)
	}
	b.createProfiledDevice("d4", "slow") // device d4 waits during the outage
	b.createBatch("a", nil, "d1", "d2", "d3", "d4")
	b.expectGrant("d1") // Redis knows the rule now
	loses.isDown.Store(true)
	b.expectGrant("d2")
	b.expectReason("d4", `{"id":"1"}`, devices.ReasonUnavailable)
	loses.isDown.Store(false)
	b.ageGrants(2 * time.Minute)
	passed.Store(int64(2 * time.Minute))
	for i := range 2 {
		done, err := b.Policies.SettleAllReservations(b.ctx)
		b.must(err)
		if done.Invalidated != 1-i {
			t.Errorf("pass %d: %+v", i, done)
		}
	}
	b.expectReason("d3", `{"id":"1"}`, devices.ReasonLimited)
}

// TestProfilesAreSettled checks a start that one replica could not settle: another replica counts it.
func TestProfilesAreSettled(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testBench) {
		loses := b.lossyFake()
		b.createPool("a", 9, time.Minute)
		b.putProfile("slow", strings.Replace(oneAnHourPerAccount, "tags.account", "pool", 1))
		b.createProfiledDevice("d1", "slow")
		b.createProfiledDevice("d2", "slow")
		b.createBatch("a", nil, "d1", "d2")
		loses.failsSettle.Store(true)
		b.expectGrant("d1")
		owners, err := b.store.PolicyOwners(b.ctx)
		b.must(err)
		if len(owners) != 1 || owners[0].Pool != "a" || owners[0].Profile != "slow" || owners[0].Batch != 0 || len(owners[0].Limits) == 0 {
			b.t.Errorf("%+v", owners)
		}
		other := dispatcher.New(dispatcher.Config{Store: b.store, Semaphore: b.semaphore, Limits: policies.NewLimits(limits.New(b.redis))})
		done, err := other.Policies.SettleAllReservations(b.ctx)
		b.must(err)
		if done.Pools != 1 || done.Counted != 1 {
			b.t.Errorf("settled %+v", done)
		}
		b.expectReason("d2", `{"id":"1"}`, devices.ReasonLimited)
		// If the start were not counted, only its open reservation would refuse the task, for some seconds and not
		// for an hour.
		if e := b.explainTask(b.deviceTaskIDs("d2")[0]); e.Causes[0].Until.Sub(e.At) < 50*time.Minute {
			b.t.Errorf("not counted: %+v", e.Causes)
		}
	}, withLongPeriod, useLossyReservations)
}
