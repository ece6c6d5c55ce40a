package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/store"
)

// TestUsageIsWhatStarted checks the usage of each policy and subject (for example, an account): it equals the
// number of starts in the ledger. This also holds after Redis lost its data, and for policies that are newer than
// the starts.
func TestUsageIsWhatStarted(t *testing.T) {
	t.Parallel()
	policies := `[
		{"name":"daily","per":"tags.account","algorithm":"calendar","period":"month","timezone":"` + servers.NoonZone() + `","max":50},
		{"name":"hourly","per":"tags.account,device","algorithm":"sliding","windows":[{"max":60,"per_ms":3600000},{"max":90,"per_ms":86400000}]},
		{"name":"long","per":"tags.account","algorithm":"sliding","windows":[{"max":500,"per_ms":86400000}]},
		{"name":"same","per":"payload.to","algorithm":"duplicate","per_ms":3600000,"max":100,"reveal":true},
		{"name":"all","per":"pool","algorithm":"fixed","per_ms":86400000,"max":1000}]`
	runOnServers(t, func(b *testBench) {
		draw := rand.New(rand.NewPCG(7, 7))
		_, _, err := b.store.PutPool(b.ctx, "test", "a", store.PoolSpec{Capacity: 9, Lease: time.Minute, Limits: json.RawMessage(policies)})
		b.must(err)
		b.putProfile("solar", `[{"name":"sparing","per":"device","algorithm":"fixed","per_ms":86400000,"max":40}]`)
		for i := range 6 {
			_, err := b.store.CreateDevice(b.ctx, "test", fmt.Sprint("d", i), store.DeviceSpec{Tags: map[string]string{"account": fmt.Sprint(i % 3)}, Profile: "solar"}, []byte{byte(i)}, nil)
			b.must(err)
		}
		for range 40 {
			device := fmt.Sprint("d", draw.IntN(6))
			b.queuePayloads(device, store.Batch{}, fmt.Sprintf(`{"to":%d}`, draw.IntN(4)))
			b.sendResult(device, b.expectGrant(device), "succeeded", "", devices.OutcomeRecorded)
		}
		b.expectUsage(40)
		b.wipeRedis(9)
		b.expectUsage(40)
		b.changePool("", func(p *store.PoolSpec) {
			p.Limits = json.RawMessage(policies[:len(policies)-1] + `,{"name":"new","per":"device","algorithm":"fixed","per_ms":86400000,"max":70}]`)
		})
		b.expectUsage(40)
	}, withLongPeriod)
}

// expectUsage checks that the usage of all subjects, and of each device, equals this number of starts.
func (b *testBench) expectUsage(starts int) {
	b.t.Helper()
	pool, err := b.store.Pool(b.ctx, "a")
	b.must(err)
	all, err := b.store.Starts(b.ctx, "a", 0, 1000)
	b.must(err)
	if len(all) != starts {
		b.t.Fatalf("%d started, want %d", len(all), starts)
	}
	used := func(owner string, policiesJSON json.RawMessage) map[string]int64 {
		counts := map[string]int64{}
		var policies []policy.Policy
		b.must(json.Unmarshal(policiesJSON, &policies))
		rules, err := limits.Compile(owner, policies)
		b.must(err)
		for _, s := range all {
			for _, r := range rules {
				facts := limits.Facts{Device: s.Device, Pool: s.Pool, Kind: s.Kind, Batch: s.Batch, Tags: s.Tags, Payload: s.Payload}
				counts[r.Name+" of "+r.Subject(facts).Label]++
			}
		}
		return counts
	}
	want := used("pool a", pool.Limits)
	highest, err := b.Policies.HighestUses(b.ctx, pool, 100)
	b.must(err)
	for i, u := range highest {
		name := u.Rule.Name + " of " + u.Subject.Label
		if u.Used != want[name] || u.Remaining != u.Max-u.Used || u.Reset <= 0 || i > 0 && u.Used*highest[i-1].Max > highest[i-1].Used*u.Max {
			b.t.Errorf("%s: %+v, want %d", name, u.WindowUse, want[name])
		}
		delete(want, name)
	}
	if len(want) != 0 {
		b.t.Errorf("not listed: %v", want)
	}
	want = used("pool a", pool.Limits)
	profile, err := b.store.Profile(b.ctx, "solar")
	b.must(err)
	maps.Copy(want, used("profile solar", profile.Limits))
	for i := range 6 {
		device, err := b.store.Device(b.ctx, fmt.Sprint("d", i))
		b.must(err)
		uses, err := b.Policies.Usage(b.ctx, pool, device, profile.Limits)
		b.must(err)
		named := map[string]bool{}
		for _, u := range uses {
			named[u.Rule.Name] = true
			if name := u.Rule.Name + " of " + u.Subject.Label; u.Used != want[name] {
				b.t.Errorf("of %s, %s: %+v, want %d", device.ID, name, u.WindowUse, want[name])
			}
		}
		if !named["daily"] || !named["sparing"] || named["same"] {
			b.t.Errorf("of %s: %v", device.ID, named)
		}
	}
}
