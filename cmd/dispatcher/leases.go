package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// newLeases returns the command `leases` with its subcommands.
func newLeases() *cobra.Command {
	o := &operatorFlags{}
	p := o.pools()
	return o.newGroup("leases", "Lease slots of pools for a program that is not a device",
		listLeases(p), exportLeases(p), acquireLease(p), renewLease(p), releaseLease(p))
}

// leaseList describes the list of the leases of a pool.
func leaseList(pool string) listSpec {
	return listSpec{path: operators.Path("pools", pool, "leases"), columns: columns("LEASE", "CALLER", "HOLDER", "STATE", "SLOT", "TOKEN", "SINCE=granted_at", "LEASE UNTIL")}
}

// listLeases returns the command `leases list`.
func listLeases(pools noun) *cobra.Command {
	var limit *int
	command := pools.objectCommand("list", "List the leases of a pool, held and waiting", func(s *session, pool string) error {
		return s.writeList(leaseList(pool), *limit)
	})
	limit = addLimitFlag(command)
	return command
}

// exportLeases returns the command `leases export`.
func exportLeases(pools noun) *cobra.Command {
	var format *string
	command := pools.objectCommand("export", "Write all leases of a pool to standard output", func(s *session, pool string) error {
		return s.export(leaseList(pool), *format)
	})
	format = listSpec{}.addFormatFlag(command)
	return command
}

// acquireLease returns the command `leases acquire`.
func acquireLease(pools noun) *cobra.Command {
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
		return (&leaseQueue{leases: s.Leases, console: s.console}).wait(s.cmd.Context(), pool, ask, wait)
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

// leaseQueue waits for a lease in the queue of a pool, and notes each change of the position.
type leaseQueue struct {
	leases   operators.Leases
	console  *console
	lastNote string // text of the latest note
}

// wait sends request until its lease is held, and then writes the lease. It fails if no slot is granted within maxWait.
func (q *leaseQueue) wait(ctx context.Context, pool string, request operators.NewLease, maxWait time.Duration) error {
	got, err := q.leases.WaitForSlot(ctx, pool, request, maxWait, q.note)
	if err != nil {
		return err
	}
	if got.State != operators.LeaseHeld {
		return fmt.Errorf("no slot of pool %s within %s: %s (%s)", pool, maxWait, got.Detail, got.Reason)
	}
	text, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return q.console.show(text)
}

// note shows the user where the lease waits in the queue. If err is not nil, it shows err, the error of a request that will be retried.
func (q *leaseQueue) note(lease operators.Lease, err error) {
	text := "Waiting: " + lease.Detail
	if lease.EstimatedStart != nil {
		text += "; estimated start " + lease.EstimatedStart.UTC().Format("15:04:05Z")
	}
	if err != nil {
		text = "Waiting: " + err.Error()
	}
	if text != q.lastNote {
		q.lastNote = text
		q.console.note("%s", text)
	}
}

// withLease returns a command about one lease of a pool. verb is the name of the command and short its help. run is called with the pool
// and the lease of the arguments.
func (n noun) withLease(verb, short string, run func(s *session, pool string, lease int64) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " POOL LEASE", Short: short, Args: cobra.ExactArgs(2), ValidArgsFunction: n.completeNames(1),
		RunE: n.withSession(func(s *session, args []string) error {
			lease, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || lease < 1 {
				return usageError{fmt.Errorf("%q is not the number of a lease", args[1])}
			}
			return run(s, args[0], lease)
		}),
	}
}

// renewLease returns the command `leases renew`.
func renewLease(pools noun) *cobra.Command {
	var token int64
	var lease time.Duration
	command := pools.withLease("renew", "Renew the lease of a slot", func(s *session, pool string, leaseID int64) error {
		if lease < 0 {
			return usageError{errors.New("--lease must not be negative")}
		}
		got, err := s.Leases.Renew(s.cmd.Context(), pool, leaseID, operators.LeaseRenewal{Token: token, LeaseMS: lease.Milliseconds()})
		if err != nil {
			return err
		}
		text, err := json.Marshal(got)
		if err != nil {
			return err
		}
		return s.console.show(text)
	})
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the lease")
	command.Flags().DurationVar(&lease, "lease", 0, "new length of the lease, from now (default: the same length as before)")
	return requireFlag(command, "token")
}

// releaseLease returns the command `leases release`.
func releaseLease(pools noun) *cobra.Command {
	var token int64
	command := pools.withLease("release", "Give a slot back, or leave the queue", func(s *session, pool string, leaseID int64) error {
		return s.Leases.Release(s.cmd.Context(), pool, leaseID, max(token, 0))
	})
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the lease; required if the slot is held")
	return command
}
