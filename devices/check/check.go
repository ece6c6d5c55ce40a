// Package check tests whether one real device keeps the contract of docs/protocol.md. The package acts as a server that loses, delays,
// repeats and refuses messages on purpose. It reads the reports of the device, and sees the connections of the device to an external system
// that belongs to the check.
//
// Only the goroutine of Run handles reports and connections, so the state of a run needs no lock. Some rules are checked with each report
// or connection (watch.go). Each other rule is checked by a scenario, which provokes a fault first.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// Options configures Run. System, OnScenario and one of HTTP and MQTT are required.
type Options struct {
	HTTP, MQTT net.Listener  // listeners to which the device reports
	MQTTScheme string        // tcp; ssl: MQTT expects TLS
	System     net.Listener  // the external system of the lab task. The device must reach it at the address of the listener
	Device     devices.ID    // the device to examine; "": the first one that reports
	Token      string        // the token of the device; "": any
	Only       string        // play only the scenarios whose names contain this text
	JoinWait   time.Duration // longest wait for the first report
	FirstToken int64         // all tokens of the check are above FirstToken, which must be above all tokens of earlier checks
	Reboot     func() error  // reboots the device, and returns when it is off or starts again. nil: no reboot is played
	ShiftClock func() error  // sets the wall clock of the device back by at least a minute. nil: not played
	// OnScenario is called before each scenario. left is the expected time until the end of the check.
	OnScenario func(name string, left time.Duration)
}

// scenario provokes one fault, or several faults that belong together.
type scenario struct {
	name       string
	seconds    int // expected length
	isPlayable bool
	play       func(*run) // provokes the fault and checks the rules about it
}

// scenarios returns all scenarios in the order in which they are played.
func (r *run) scenarios() []scenario {
	return []scenario{
		{"a task", 4, true, playTask},
		{"unknown fields, reasons and outcomes", 5, true, playUnknownValues},
		{"a large reply", 2, true, playLargeReply},
		{"lost replies", 8, true, playLostReplies},
		{"a busy server", 11, true, playBusyServer},
		{"a repeated grant", 9, true, playRepeatedGrant},
		{"a grant with an old token", 5, true, playOldToken},
		{"a grant that answers no report", 4, true, playUnsentReport},
		{"a late grant", 8, true, playLateGrant},
		{"a cancel", 4, true, playCancel},
		{"renewals", 10, true, playRenewals},
		{"a lease that ends", 6, true, playLeaseEnd},
		{"a slow reply", 8, true, playSlowReply},
		{"a parked report", 6, r.last != nil && r.last.wait > 0, playParkedReport},
		{"a report that is too large", 11, true, playReportTooLarge},
		{"no reply", 30, true, playNoReply},
		{"a clock that jumps", 8, r.ShiftClock != nil, playClockSetBack},
		{"a reboot while a task runs", 8, r.Reboot != nil, playRebootAtWork},
		{"a reboot before the outcome", 8, r.Reboot != nil, playRebootWithResult},
	}
}

// Run examines the device, and returns one finding for each rule. If ctx ends or the device falls silent, it returns an error and the findings
// so far. If no scenario matches Options.Only, it returns an error and no findings.
func Run(ctx context.Context, options Options) ([]Finding, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newRun(ctx, options, options.System.Addr().String())
	var names []string
	for _, s := range r.scenarios() {
		names = append(names, s.name)
	}
	if !strings.Contains(strings.Join(names, "\n"), options.Only) {
		return nil, fmt.Errorf("no scenario has %q in its name: %s", options.Only, strings.Join(names, ", "))
	}
	rescue.Async(func() error { return r.serveSystem(ctx) })
	if options.HTTP != nil {
		rescue.Async(func() error { return r.serveHTTP(ctx) })
	}
	if options.MQTT != nil {
		stop, err := r.startMQTT() //nolint:contextcheck // stop ends the broker
		if err != nil {
			return nil, fmt.Errorf("starting the broker of the check: %w", err)
		}
		defer stop()
	}
	err := r.play(ctx)
	return r.findings, err
}

// play plays the scenarios after the device has reported for the first time.
func (r *run) play(ctx context.Context) error {
	if !r.handleUntil(r.JoinWait, nil, func() bool { return r.last != nil }) {
		return cmp.Or(ctx.Err(), errors.New("no report of the device arrived"))
	}
	list := slices.DeleteFunc(r.scenarios(), func(s scenario) bool { return !s.isPlayable || !strings.Contains(s.name, r.Only) })
	for i, s := range list {
		left := 0
		for _, following := range list[i:] {
			left += following.seconds
		}
		r.scenario = s.name
		r.OnScenario(s.name, time.Duration(left)*time.Second)
		r.waitUntilIdle()
		if s.play(r); r.isOver() {
			return cmp.Or(ctx.Err(), r.fault)
		}
	}
	return nil
}
