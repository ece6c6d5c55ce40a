package simulator

import (
	"cmp"
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
	// tasksPerDevice is the number of tasks for each device if Tasks is 0.
	tasksPerDevice = 5
)

// Config describes a whole simulation against a running dispatcher. Zero values mean the defaults, except for URL and the tokens.
type Config struct {
	URL           string // URL of the dispatcher; several replicas are separated by commas
	MQTTURL       string // URL of the broker; needed unless Via is "http"
	OperatorToken string // operator token with role admin
	FleetToken    string
	Credentials   Credentials // default "fleet"

	Devices      int
	DevicePrefix string        // prefix of device ids, followed by a number
	Pool         string        // created if it does not exist; tasks of other pools do not use the external system
	Capacity     int           // capacity of the pool if it is created
	Lease        time.Duration // lease of the pool if it is created; 0 means the server's default
	Margin       time.Duration // time for which the dispatcher keeps a slot after the device's lease; 0 means that every device whose lease has ended is excused
	Tasks        int           // number of tasks (in each batch, if Endless or FillUntil is set); default: 5 for each device, 1 if Endless
	Via          Via
	Work         time.Duration // mean work time of a task; the work time of each task is within 50 % of it
	LongShare    float64       // share of the tasks that work for 0.9 of the lease instead
	Period       time.Duration // time between reports if the server names none
	Connections  int           // number of connections that an idle fleet shares
	ResendAfter  time.Duration // if no reply comes, a device reports again after 1 to 3 times this duration
	FirstRetry   time.Duration // first wait after a failure, which doubles; default 1 s
	Faults
	Seed uint64
	// Introduce lets every device report once, at a random time within a period, before tasks are queued. So the
	// dispatcher knows all devices before the makespan is measured.
	Introduce        bool
	RestTime         time.Duration // time between the last introductory report and the queueing of tasks
	RoundTrip        time.Duration // round-trip time of the devices; Summary.Ideal adds it to each task
	NotBefore        time.Duration // tasks may start this long after they are queued
	OnBegan, OnEnded func()        // called when the tasks may start, and when all have ended; nil means no call
	Timeout          time.Duration // ignored by an endless run
	ExternalAddr     string        // address of the external system; "" means a free loopback port
	Endless          bool          // keeps the queue filled until the context ends
	// If FillUntil is not nil, the run keeps the queue filled until this channel is closed. When all tasks have ended, the run compares
	// them with the journals of the devices, and ends.
	FillUntil <-chan struct{}
}

func (c Config) withDefaults() Config {
	c.Devices = cmp.Or(c.Devices, DefaultDevices)
	c.DevicePrefix = cmp.Or(c.DevicePrefix, DefaultPrefix)
	c.Pool = cmp.Or(c.Pool, DefaultPool)
	c.Capacity = cmp.Or(c.Capacity, DefaultCapacity)
	c.Via = cmp.Or(c.Via, ViaHTTP)
	c.Credentials = cmp.Or(c.Credentials, CredentialsFleet)
	c.Work = cmp.Or(c.Work, DefaultWork)
	c.Period = cmp.Or(c.Period, DefaultPeriod)
	c.Connections = cmp.Or(c.Connections, DefaultConnections)
	c.ResendAfter = cmp.Or(c.ResendAfter, DefaultResend)
	c.FirstRetry = cmp.Or(c.FirstRetry, time.Second)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	for _, listener := range []*func(){&c.OnBegan, &c.OnEnded} {
		if *listener == nil {
			*listener = func() {}
		}
	}
	if c.Tasks == 0 {
		c.Tasks = c.Devices
		if !c.Endless {
			c.Tasks *= tasksPerDevice
		}
	}
	return c
}

func (c Config) validate() error {
	errs := []error{c.Via.Check()}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Devices >= 1, "devices: %d, want at least 1", c.Devices)
	check(min(c.Capacity, c.Tasks) >= 0, "capacity and tasks must not be negative")
	check(min(c.Lease, c.Timeout, c.NotBefore, c.Work, c.Period, c.ResendAfter, c.FirstRetry) >= 0,
		"lease, timeout, not before, work, period, resend and retry must not be negative")
	check(c.Gone == 0 || c.Tasks <= c.Devices && !c.Endless && c.FillUntil == nil,
		"gone: there must be at most one task per device, because a device that is gone ends no further task")
	check(c.LongShare >= 0 && c.LongShare <= 1, "long: share %v is not between 0 and 1", c.LongShare)
	check(c.Credentials == CredentialsFleet || c.Credentials == CredentialsOwn, "credentials: %q is not one of fleet, own", c.Credentials)
	if err := checkURLs(c.URL, "http", "https"); err != nil {
		errs = append(errs, fmt.Errorf("dispatcher: %w", err))
	}
	if _, mqtt := c.Via.needsTransports(); mqtt {
		errs = append(errs, checkURLs(c.MQTTURL, "mqtt", "tcp", "mqtts", "ssl"))
	}
	return errors.Join(errs...)
}
