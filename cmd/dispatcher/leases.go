package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func leasesCommand() *cobra.Command {
	o := &operatorFlags{}
	p := o.poolCommands()
	list := listSpec{columns: newColumns("LEASE", "CALLER", "HOLDER", "STATE", "SLOT", "TOKEN", "SINCE=granted_at", "LEASE UNTIL")}
	return o.groupCommand("leases", "Lease slots of pools for a program that is not a device", listLeasesCommand(p, list), exportLeasesCommand(p, list), acquireLeaseCommand(p), renewLeaseCommand(p), releaseLeaseCommand(p))
}

func listLeasesCommand(pools commandFactory, list listSpec) *cobra.Command {
	var limit *int
	command := pools.objectCommand("list", "List the leases of a pool, held and waiting", func(s *session, pool string) error {
		list.path = operators.Path("pools", pool, "leases")
		return s.writeList(list, *limit)
	})
	limit = addLimitFlag(command)
	return command
}

func exportLeasesCommand(pools commandFactory, list listSpec) *cobra.Command {
	var format *string
	command := pools.objectCommand("export", "Write all leases of a pool to standard output", func(s *session, pool string) error {
		list.path = operators.Path("pools", pool, "leases")
		return s.exportList(list, *format)
	})
	format = list.addFormatFlag(command)
	return command
}

func acquireLeaseCommand(pools commandFactory) *cobra.Command {
	var ask operators.NewLease
	var lease, wait time.Duration
	var metadata string
	command := pools.objectCommand("acquire", "Get a slot of a pool", func(s *session, pool string) error {
		if lease < 0 || wait < 0 {
			return usageError{errors.New("--lease and --wait must not be negative")}
		}
		if ask.LeaseMS = lease.Milliseconds(); metadata != "" {
			ask.Metadata = json.RawMessage(metadata)
			if !json.Valid(ask.Metadata) {
				return usageError{errors.New("--metadata: not JSON")}
			}
		}
		if wait == 0 {
			return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path("pools", pool, "leases"), Body: ask})
		}
		got, err := s.waitForLease(pool, ask, wait)
		if err != nil {
			return err
		}
		return s.showValue(got)
	})
	command.Long = `Get a slot of a pool, and print its number, its fencing token and how long it
may be used. Renew it in time (leases renew), and give it back (leases release).

Without --wait it fails at once if no slot is free. With --wait it waits in the
queue; Ctrl-C leaves the queue. A holder that already has a lease gets that lease.`
	command.Flags().StringVar(&ask.Holder, "holder", "", "name of the holder, such as job-17 (default: a random name)")
	command.Flags().DurationVar(&lease, "lease", 0, "how long the slot may be held without a renewal (default: the lease of the pool)")
	command.Flags().DurationVar(&wait, "wait", 0, "how long to wait in the queue; 0: do not wait")
	command.Flags().StringVar(&metadata, "metadata", "", "JSON object with information for people")
	return command
}

// waitForLease sends request again until the lease is granted, and shows why the lease waits. It returns an error if no
// slot is granted within maxWait.
func (s *session) waitForLease(pool string, request operators.NewLease, maxWait time.Duration) (operators.Lease, error) {
	line := s.console.newStatusLine()
	defer line.Clear()
	got, err := s.Leases.WaitForSlot(s.cmd.Context(), pool, request, maxWait, line.updateWaiting)
	if err == nil && got.State != operators.LeaseHeld {
		err = fmt.Errorf("no slot of pool %s within %s: %s (%s)", pool, maxWait, got.Detail, got.Reason)
	}
	return got, err
}

// leaseCommand returns a command that works on one lease of a pool. verb is the name of the command. shortHelp is the
// help of the command. run is called with the name of the pool and the id of the lease.
func (n commandFactory) leaseCommand(verb, shortHelp string, run func(s *session, pool string, lease int64) error) *cobra.Command {
	return n.objectPartCommand(verb+" POOL LEASE", shortHelp, func(s *session, pool, id string) error {
		lease, err := strconv.ParseInt(id, 10, 64)
		if err != nil || lease < 1 {
			return usageError{fmt.Errorf("%q is not the number of a lease", id)}
		}
		return run(s, pool, lease)
	})
}

func renewLeaseCommand(pools commandFactory) *cobra.Command {
	var token int64
	var lease time.Duration
	command := pools.leaseCommand("renew", "Renew the lease of a slot", func(s *session, pool string, leaseID int64) error {
		if lease < 0 {
			return usageError{errors.New("--lease must not be negative")}
		}
		got, err := s.Leases.Renew(s.cmd.Context(), pool, leaseID, operators.LeaseRenewal{Token: token, LeaseMS: lease.Milliseconds()})
		if err != nil {
			return err
		}
		return s.showValue(got)
	})
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the lease")
	command.Flags().DurationVar(&lease, "lease", 0, "new length of the lease, from now (default: the same length as before)")
	return requireFlag(command, "token")
}

func releaseLeaseCommand(pools commandFactory) *cobra.Command {
	var token int64
	command := pools.leaseCommand("release", "Give a slot back, or leave the queue", func(s *session, pool string, leaseID int64) error {
		return s.Leases.Release(s.cmd.Context(), pool, leaseID, max(token, 0))
	})
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the lease; required if the slot is held")
	return command
}
