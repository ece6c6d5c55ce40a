package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/hawkbit"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestFaultsOnTwoWires checks the promises under the faults of TestFaults. In 60 slots, it runs 200 devices that speak hawkBit's DDI and
// 300 devices with the dispatcher's own protocol. The external system must never count a 61st device. Every task over both protocols must
// end. Slots of DDI devices that die in the external system must become free again. The test does not run with -short.
func TestFaultsOnTwoWires(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes many minutes")
	}
	for _, g := range faultGroups() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			runJudged(t, func(t *testing.T, v *verdict) {
				t.Helper()
				x := newExperiment(t, v, g.redisArgs...)
				x.fleet.Devices, x.fleet.ExternalAddr = 300, servers.FreeAddr(t)
				if g.prepare != nil {
					g.prepare(x)
				}
				x.deploy()
				d := &hawkbitFleet{experiment: x, count: 200}
				faults := append([]fault{{"the DDI devices come", d.start}}, g.faults(x)...)
				x.run(append(faults, fault{"the DDI devices finish", d.finish})...)
			})
		})
	}
}

// hawkbitFleet is a fleet of devices that speak hawkBit's DDI, in the pool of an experiment.
type hawkbitFleet struct {
	*experiment

	count    int
	operator *simulator.Operator
	batches  []int64
	deaths   atomic.Int64
	loops    sync.WaitGroup
	end      context.CancelFunc
}

// hawkbitPayload is a deployment. The devices do not download it: they enter the external system instead.
const hawkbitPayload = `{"deployment":{"chunks":[{"part":"os","version":"1","name":"image","artifacts":[{"filename":"image.swu","size":1,
	"hashes":{"sha1":"0123456789012345678901234567890123456789"},"url":"http://files.test/image.swu"}]}]}}`

// start starts the devices and queues four updates for each of them.
func (d *hawkbitFleet) start(ctx context.Context) (err error) {
	if d.operator, err = simulator.NewOperator(d.fleet.URL, adminToken); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: d.count}}
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	d.end = end
	d.t.Cleanup(func() { end(); d.loops.Wait(); client.CloseIdleConnections() })
	ids := make([]string, d.count)
	for i := range ids {
		ids[i] = fmt.Sprintf("ddi-%03d", i)
		dice := newDice(i)
		one := &hawkbit.Device{
			URL: d.fleet.URL + "/DEFAULT", ID: ids[i], Token: fleetToken, ExternalAddr: d.fleet.ExternalAddr, Place: 1000 + i, Client: client,
			Work: time.Second, Patience: d.fleet.Lease*2/3 - d.margin(), Silence: 2 * d.fleet.Lease,
			Dies: func() bool {
				dies := dice.Float64() < 0.05
				if dies {
					d.deaths.Add(1)
				}
				return dies
			},
		}
		d.loops.Go(func() { one.Run(alive) })
	}
	for range 4 {
		made, err := d.operator.Batches.Create(ctx, operators.NewBatch{
			Pool: pool, Name: "ddi", Kind: "ddi", Payload: json.RawMessage(hawkbitPayload), MaxAttempts: 100, RetryBackoffMS: new(int64(200)), Devices: ids,
		}, operators.QueueMode{})
		if err != nil {
			return err
		}
		d.batches = append(d.batches, made.ID)
	}
	return nil
}

// finish waits until all updates have succeeded, and stops the devices.
func (d *hawkbitFleet) finish(ctx context.Context) error {
	for _, id := range d.batches {
		var last operators.Batch
		if err := poll(ctx, metricsPause, func() bool {
			found, err := d.operator.Batches.Get(ctx, id)
			if err == nil {
				last = found
			}
			return err == nil && last.Counts["succeeded"] == last.Total
		}); err != nil {
			return fmt.Errorf("updates of batch %d: %v: %w", id, last.Counts, err)
		}
	}
	var overruns int
	if err := d.db.QueryRowContext(ctx, `SELECT count(*) FROM events WHERE kind = 'device.overrun'`).Scan(&overruns); err != nil {
		return err
	}
	d.t.Logf("%d updates over DDI; %d devices died inside; %d grants of DDI devices ended without a result", len(d.batches)*d.count, d.deaths.Load(), overruns)
	if int64(overruns) < d.deaths.Load() {
		return fmt.Errorf("%d overruns recorded for %d deaths", overruns, d.deaths.Load())
	}
	d.end()
	d.loops.Wait()
	return nil
}
