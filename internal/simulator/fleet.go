package simulator

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// maxSpread limits the time over which the devices start if Config.Introduce is false.
const maxSpread = 5 * time.Second

// Fleet is a number of simulated devices.
type Fleet struct {
	config   Config
	external string   // address of the external system
	tokens   []string // one token for each device; empty if all use the fleet token
	client   *http.Client
	count    counters
	results  *resultLog
	leases   *leases
}

// newFleet returns a fleet that does nothing before Run. tokens is empty if all devices use the fleet token.
func newFleet(config Config, externalAddr string, tokens []string, leases *leases) *Fleet {
	return &Fleet{config: config.withDefaults(), external: externalAddr, tokens: tokens, client: newHTTPClient(config.Devices + 8), results: newResultLog(), leases: leases}
}

// Run starts the devices at random times: within one period if Config.Introduce is true, otherwise within at most
// maxSpread. It returns when ctx has ended and all devices have left the external system.
func (f *Fleet) Run(ctx context.Context) {
	spread := f.config.Period
	if !f.config.Introduce {
		spread = min(spread, maxSpread)
	}
	var wait sync.WaitGroup
	for i := range f.config.Devices {
		d := f.newDevice(i)
		start := d.dice.randomBetween(0, spread)
		wait.Go(func() { d.run(ctx, start) })
	}
	wait.Wait()
	f.client.CloseIdleConnections()
}

// Stats returns the counts of the fleet so far.
func (f *Fleet) Stats() Stats { return f.count.stats() }

// Unacknowledged returns the number of results for which the server has not sent an outcome yet.
func (f *Fleet) Unacknowledged() int { return f.results.countUnacknowledged() }

// DeviceID returns the id of the i-th device, 0 <= i < Config.Devices.
func (f *Fleet) DeviceID(i int) string { return deviceID(f.config.DevicePrefix, i) }

// deviceID returns the id of the device number index (from 0): prefix and a number.
func deviceID(prefix string, index int) string { return fmt.Sprintf("%s%05d", prefix, index+1) }

func (f *Fleet) newDevice(index int) *device {
	return &device{fleet: f, id: f.DeviceID(index), link: f.newLink(index), kind: f.config.Via.transportOfDevice(index), dice: newDice(f.config.Seed, uint64(index)+1)}
}

// externalAddr returns the address of the external system, or "" if the tasks of the pool do not use it.
func (f *Fleet) externalAddr(pool string) string {
	if f.config.Pool != pool {
		return ""
	}
	return f.external
}

func (f *Fleet) newLink(index int) serverLink {
	c, token := f.config, f.config.FleetToken
	if len(f.tokens) > 0 {
		token = f.tokens[index]
	}
	if c.Via.transportOfDevice(index) == ViaMQTT {
		return newMQTTLink(c.MQTTURL, f.DeviceID(index), token, c.FirstRetry)
	}
	return newHTTPLink(f.client, newReplicaURLs(c.URL, index/len(c.Via.kinds())), f.DeviceID(index), token)
}
