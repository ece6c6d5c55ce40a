package simulator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Defaults of Options and Config.
const (
	DefaultWork   = 20 * time.Second
	DefaultPeriod = 30 * time.Second
	DefaultResend = 10 * time.Second
	DefaultPrefix = "sim-"
)

// maxSpread bounds the time over which a fleet starts unless it is told.
const maxSpread = 5 * time.Second

// Options are what a fleet is made of. The zero value of a duration is its default.
type Options struct {
	URL      string   // of the dispatcher, http or https; of several replicas, with commas between
	MQTTURL  string   // of the broker: mqtt or tcp; needed if Via has devices with MQTT
	Token    string   // fleet token
	Tokens   []string // each device's own; none: all use Token
	Devices  int      // at least 1
	Prefix   string   // of device ids; a number follows. Default "sim-"
	Via      Via      // default "http"
	External string   // address of the external system
	Pool     string   // of the tasks that use it; other work needs no slot there. Empty: every task's

	Work   time.Duration // mean work of tasks that carry no work_ms; drawn within 50 %
	Period time.Duration // between reports when the server names no time
	Resend time.Duration // without a reply, report again after 1-3 times this
	Retry  time.Duration // first wait after a failure, doubling; default 1 s
	Spread time.Duration // devices start at random within it; default Period, at most 5 s
	Faults Faults
	Seed   uint64
}

func (o Options) withDefaults() Options {
	o.Prefix = orDefault(o.Prefix, DefaultPrefix)
	o.Via = orDefault(o.Via, ViaHTTP)
	o.Work = orDefault(o.Work, DefaultWork)
	o.Period = orDefault(o.Period, DefaultPeriod)
	o.Resend = orDefault(o.Resend, DefaultResend)
	o.Retry = orDefault(o.Retry, time.Second)
	o.Spread = orDefault(o.Spread, min(o.Period, maxSpread))
	return o
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

func (o Options) validate() error {
	errs := []error{o.Faults.validate(), o.Via.Check()}
	if o.Devices < 1 {
		errs = append(errs, fmt.Errorf("devices: %d, want at least 1", o.Devices))
	}
	if n := len(o.Tokens); n != 0 && n != o.Devices {
		errs = append(errs, fmt.Errorf("tokens: %d for %d devices", n, o.Devices))
	}
	http, mqtt := o.Via.uses()
	if http {
		errs = append(errs, checkURLs(o.URL, "http", "https"))
	}
	if mqtt {
		errs = append(errs, checkURL(o.MQTTURL, "mqtt", "tcp", "mqtts", "ssl"))
	}
	if o.Work < 0 || o.Period < 0 || o.Resend < 0 || o.Retry < 0 || o.Spread < 0 {
		errs = append(errs, errors.New("work, period, resend, retry and spread must not be negative"))
	}
	return errors.Join(errs...)
}

// Fleet is a number of simulated devices.
type Fleet struct {
	options Options
	client  *http.Client
	count   counters
	ledger  *ledger
	leases  *leases
}

// NewFleet checks the options. Nothing runs before Run.
func NewFleet(o Options) (*Fleet, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("simulated fleet: %w", err)
	}
	return &Fleet{options: o, client: newHTTPClient(o.Devices + 8), ledger: newLedger(), leases: newLeases()}, nil
}

// Run starts the devices over Options.Spread and returns when ctx has ended
// and all of them have left the external system.
func (f *Fleet) Run(ctx context.Context) {
	var wait sync.WaitGroup
	for i := range f.options.Devices {
		d := f.device(i)
		start := d.dice.between(0, f.options.Spread)
		wait.Go(func() { d.run(ctx, start) })
	}
	wait.Wait()
	f.client.CloseIdleConnections()
}

// Stats returns what the fleet did so far.
func (f *Fleet) Stats() Stats { return f.count.snapshot() }

// Introduced is how many devices have had an answer.
func (f *Fleet) Introduced() int { return int(f.count.introduced.Load()) }

// Unsettled is how many results still wait for an outcome.
func (f *Fleet) Unsettled() int { return f.ledger.unsettled() }

// Device is the id of the i-th device, 0 <= i < Options.Devices.
func (f *Fleet) Device(i int) string { return deviceID(f.options.Prefix, i) }

func deviceID(prefix string, i int) string { return fmt.Sprintf("%s%05d", prefix, i+1) }

func (f *Fleet) device(i int) *device {
	o := f.options
	return &device{
		id: f.Device(i), link: f.link(i), external: o.External, pool: o.Pool,
		manners: f.manners(i), faults: o.Faults, dice: newDice(o.Seed, uint64(i)+1), count: &f.count, ledger: f.ledger, leases: f.leases,
	}
}

func (f *Fleet) manners(i int) manners {
	o := f.options
	m := manners{work: o.Work, period: o.Period, resend: o.Resend, retry: o.Retry, forbidden: 600 * o.Retry}
	switch o.Via.of(i) {
	case ViaLongPoll:
		m.wait = longPollWait
	case ViaPeriodic:
		m.periodic = true
	}
	return m
}

func (f *Fleet) link(i int) link {
	o, token := f.options, f.options.Token
	if len(o.Tokens) > 0 {
		token = o.Tokens[i]
	}
	if o.Via.of(i) == ViaMQTT {
		return newMQTTLink(o.MQTTURL, f.Device(i), token, o.Retry)
	}
	return newHTTPLink(f.client, newReplicas(o.URL, i/len(o.Via.kinds())), f.Device(i), token)
}
