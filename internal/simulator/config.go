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
	DefaultWork     = 20 * time.Second
	DefaultPeriod   = 30 * time.Second
	DefaultResend   = 10 * time.Second
	DefaultPrefix   = "sim-"
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
	DevicePrefix string        // of device ids; a number follows
	Pool         string        // created unless it exists; tasks of others do not use the external system
	Capacity     int           // of the pool when it is created
	Lease        time.Duration // of the pool when it is created; 0 = the server's default
	Margin       time.Duration // the dispatcher keeps a slot so long after the lease that it told; 0: not known
	Tasks        int           // in all; Endless, Until: in each batch. Default: 5 a device, Endless: 1
	Via          Via
	Work         time.Duration // mean work of a task, drawn within 50 %
	Long         float64       // share of tasks that take 0.9 of the lease instead
	Period       time.Duration // between reports when the server names no time
	Connections  int           // that an idle fleet shares
	Resend       time.Duration // without a reply, a device reports again after 1-3 times this
	Retry        time.Duration // first wait after a failure, doubling; default 1 s
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
	c.Period = orDefault(c.Period, DefaultPeriod)
	c.Connections = orDefault(c.Connections, DefaultConnections)
	c.Resend = orDefault(c.Resend, DefaultResend)
	c.Retry = orDefault(c.Retry, time.Second)
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
	errs := []error{c.Faults.validate(), c.Via.Check()}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Devices >= 1, "devices: %d, want at least 1", c.Devices)
	check(min(c.Capacity, c.Tasks) >= 0, "capacity and tasks must not be negative")
	check(min(c.Lease, c.Timeout, c.NotBefore, c.Work, c.Period, c.Resend, c.Retry) >= 0,
		"lease, timeout, not before, work, period, resend and retry must not be negative")
	check(c.Gone == 0 || c.Tasks <= c.Devices && !c.Endless && c.Until == nil,
		"gone: a device that is gone ends no further task; at most one task a device")
	check(c.Long >= 0 && c.Long <= 1, "long: share %v is not within 0..1", c.Long)
	check(c.Credentials == CredentialsFleet || c.Credentials == CredentialsOwn, "credentials: %q, want fleet or own", c.Credentials)
	if err := checkURLs(c.URL, "http", "https"); err != nil {
		errs = append(errs, fmt.Errorf("dispatcher: %w", err))
	}
	if _, mqtt := c.Via.uses(); mqtt {
		errs = append(errs, checkURL(c.MQTTURL, "mqtt", "tcp", "mqtts", "ssl"))
	}
	return errors.Join(errs...)
}
