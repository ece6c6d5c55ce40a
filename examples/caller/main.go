// Command caller is an example of a program that is not a device: it works while it holds a slot of a
// pool. It uses the Go client of the operators' API. The address of the server, and a token with the
// role caller, are in the environment.
//
//	DISPATCHER_URL=http://127.0.0.1:8080 DISPATCHER_TOKEN=... go run ./examples/caller -work 90s nightly
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "caller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("caller", flag.ContinueOnError)
	lease := flags.Duration("lease", time.Minute, "length of the lease, which is renewed")
	workTime := flags.Duration("work", time.Minute, "how long the work takes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("name a pool")
	}
	client, err := operators.New(operators.Config{URL: os.Getenv("DISPATCHER_URL"), Token: os.Getenv("DISPATCHER_TOKEN")})
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	s := slot{leases: client.Leases, pool: flags.Arg(0), length: *lease, holder: fmt.Sprintf("%.40s-%d", host, os.Getpid())}
	defer s.giveBack(context.WithoutCancel(ctx)) // the slot, or the position in the queue
	if err := s.acquire(ctx, out); err != nil {
		return err
	}
	return s.hold(ctx, func(ctx context.Context) error { return work(ctx, out, *s.Slot, s.Token, *workTime) })
}

// work is the place for your work, which needs the slot. It stops when ctx ends. If the external system can compare
// fencing tokens, send it the token: it then refuses a token that is lower than the highest token that it received for
// this slot.
func work(ctx context.Context, out io.Writer, slot int, token int64, length time.Duration) error {
	_, _ = fmt.Fprintf(out, "working in slot %d with token %d\n", slot, token)
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
