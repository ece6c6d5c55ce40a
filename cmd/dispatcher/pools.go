package main

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

func newPools() *cobra.Command {
	o := &operator{}
	p := o.pools()
	verbs := o.addList(list{path: operators.Path("pools"), forms: map[string]func(*session) error{"yaml": (*session).exportPools}, columns: []column{
		member("NAME", "name"), member("CAPACITY", "capacity"), member("LEASE", "lease_ms"), member("PAUSED", "paused"),
		member("OPENS", "opens_at"), member("CLOSES", "closes_at"), member("UPDATED", "updated_at"),
	}}, "List pools by name", nil)
	verbs = append(verbs, p.call("get", "Show a pool", http.MethodGet, ""), createPool(p), setPool(p), applyPools(o),
		p.call("delete", "Delete a pool of which nothing is open; its ended batches stay", http.MethodDelete, ""),
		p.pause("Grant nothing more of a pool; what runs goes on"),
		p.call("resume", "End the pause of a pool", http.MethodPost, "/resume"),
		showSlots(p), releaseSlot(p), checkGrant(p), limitedOf(p), watchPool(p))
	return o.group("pools", "Create, resize, pause and watch pools", verbs...)
}

// poolFlags are the settings of a pool.
type poolFlags struct {
	capacity int
	lease    time.Duration
	paused   bool
	windows  windowsFlag
	limits   limitsFlag
	always   bool
}

func (p *poolFlags) add(flags *pflag.FlagSet) {
	flags.IntVar(&p.capacity, "capacity", 0, "devices inside at once")
	flags.DurationVar(&p.lease, "lease", 0, "how long a device may hold a slot before it must renew (default 5m)")
	flags.BoolVar(&p.paused, "paused", false, "grant nothing new")
	p.windows.add(flags)
}

// body has what was said.
func (p *poolFlags) body(flags *pflag.FlagSet) (map[string]any, error) {
	body := given(flags, map[string]field{
		"capacity": {"capacity", p.capacity}, "lease": {"lease_ms", p.lease.Milliseconds()},
		"paused": {"paused", p.paused}, "window": {"windows", p.windows},
	})
	if p.always {
		body["windows"] = nil // the default
	}
	return body, p.limits.say(body)
}

func createPool(p noun) *cobra.Command {
	settings := &poolFlags{}
	command := p.on("create", "Create a pool", func(s *session, pool string) error {
		path := operators.Path("pools", pool)
		body, err := settings.body(s.cmd.Flags())
		if err != nil {
			return err
		}
		_, err = s.Get(s.cmd.Context(), path, nil)
		if err == nil {
			return advisedError{fmt.Errorf("there is a pool %s already", pool), "change it: dispatcher pools set " + pool}
		}
		if !operators.Refused(err, http.StatusNotFound) {
			return err
		}
		return s.act(operators.Request{Method: http.MethodPut, Path: path, Body: body})
	})
	settings.add(command.Flags())
	settings.limits.add(command.Flags())
	return needed(command, "capacity")
}

func setPool(p noun) *cobra.Command {
	settings := &poolFlags{}
	command := p.on("set", "Change the settings of a pool that are given as flags; the others stay", func(s *session, pool string) error {
		body, err := settings.body(s.cmd.Flags())
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return usageError{errors.New("nothing to change: give at least one of --capacity, --lease, --paused, --window, --always-open, --limits, --no-limits")}
		}
		return s.act(operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", pool), Body: body})
	})
	settings.add(command.Flags())
	settings.limits.addChange(command)
	command.Flags().BoolVar(&settings.always, "always-open", false, "no windows any more")
	command.MarkFlagsMutuallyExclusive("window", "always-open")
	return command
}
