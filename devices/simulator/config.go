package simulator

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of Config.
const (
	DefaultPool     = "sim"
	DefaultCapacity = 60
	DefaultDevices  = 200
	DefaultTimeout  = 30 * time.Minute
	// tasksPerDevice is how many tasks a device gets when Tasks is not given.
	tasksPerDevice = 5
)

// Config is a whole simulation against a running dispatcher. Zero values are
// the defaults, but for URL and the tokens.
type Config struct {
	URL           string // of the dispatcher; of several replicas, with commas between
	MQTTURL       string // of its broker; needed unless Via is "http"
	OperatorToken string // role admin
	FleetToken    string
	Credentials   Credentials // default "fleet"

	Devices      int
	DevicePrefix string
	Pool         string        // created unless it exists
	Capacity     int           // of the pool when it is created
	Lease        time.Duration // of the pool when it is created; 0 = the server's default
	Margin       time.Duration // the dispatcher keeps a slot so long after the lease that it told; 0: not known
	Tasks        int           // in all; Endless, Until: in each batch. Default: 5 a device, Endless: 1
	Via          Via
	Work         time.Duration // mean work of a task, drawn within 50 %
	Long         float64       // share of tasks that take 0.9 of the lease instead
	Period       time.Duration
	Resend       time.Duration // see Options
	Retry        time.Duration // see Options
	Faults
	Seed uint64
	// Introduce lets every device report once, at random within a period,
	// before tasks are queued: what follows is the makespan of a known fleet.
	Introduce    bool
	Rest         time.Duration // between the last of these reports and the queue
	RoundTrip    time.Duration // of the devices: what Summary.Ideal adds to each task
	NotBefore    time.Duration // tasks may start so long after they are queued
	Began, Ended func()        // called when the tasks may start, and when all have ended; nil: nobody
	Timeout      time.Duration // ignored by an endless run
	ExternalAddr string        // where the external system listens; "" = a free loopback port
	Endless      bool          // keeps the queue filled until the context ends
	// Until, if it is not nil, keeps the queue filled until it is closed; the
	// run ends when every task has, and all of them are judged.
	Until <-chan struct{}
}

func (c Config) withDefaults() Config {
	c.Devices = orDefault(c.Devices, DefaultDevices)
	c.DevicePrefix = orDefault(c.DevicePrefix, DefaultPrefix)
	c.Pool = orDefault(c.Pool, DefaultPool)
	c.Capacity = orDefault(c.Capacity, DefaultCapacity)
	c.Via = orDefault(c.Via, ViaHTTP)
	c.Credentials = orDefault(c.Credentials, CredentialsFleet)
	c.Work = orDefault(c.Work, DefaultWork)
	c.Timeout = orDefault(c.Timeout, DefaultTimeout)
	if c.Tasks == 0 {
		c.Tasks = c.Devices
		if !c.Endless {
			c.Tasks *= tasksPerDevice
		}
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Capacity < 0 || c.Tasks < 0 || c.Lease < 0 || c.Timeout < 0 || c.NotBefore < 0 {
		errs = append(errs, errors.New("capacity, tasks, lease, timeout and not before must not be negative"))
	}
	if c.Gone > 0 && (c.Tasks > c.Devices || c.Endless || c.Until != nil) {
		errs = append(errs, errors.New("gone: a device that is gone ends no further task; at most one task a device"))
	}
	if !(c.Long >= 0 && c.Long <= 1) {
		errs = append(errs, fmt.Errorf("long: share %v is not within 0..1", c.Long))
	}
	if c.Credentials != CredentialsFleet && c.Credentials != CredentialsOwn {
		errs = append(errs, fmt.Errorf("credentials: %q, want fleet or own", c.Credentials))
	}
	if err := checkURLs(c.URL, "http", "https"); err != nil {
		errs = append(errs, fmt.Errorf("dispatcher: %w", err))
	}
	return errors.Join(errs...)
}

func (c Config) fleet(external string, tokens []string) Options {
	o := Options{
		URL: c.URL, MQTTURL: c.MQTTURL, Token: c.FleetToken, Tokens: tokens,
		Devices: c.Devices, Prefix: c.DevicePrefix, Via: c.Via, External: external, Pool: c.Pool,
		Work: c.Work, Period: c.Period, Resend: c.Resend, Retry: c.Retry,
		Faults: c.Faults, Seed: c.Seed,
	}
	if c.Introduce {
		o.Spread = orDefault(c.Period, DefaultPeriod)
	}
	return o
}
