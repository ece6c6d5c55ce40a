package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// newPools returns the command `pools` with its subcommands.
func newPools() *cobra.Command {
	o := &operatorFlags{}
	p := o.pools()
	exportYAML := func(s *session) error {
		q := poolFilters(s.cmd.Flags())
		filter := operators.PoolFilter{Name: q.Get("name"), Sort: q.Get("sort"), OnlyTrouble: q.Has("only_trouble")}
		return writePoolFile(s.Pools.List(s.cmd.Context(), filter), s.console.out)
	}
	verbs := o.newListCommands(listSpec{path: operators.Path("pools"), filters: poolFilters, extraFormats: map[string]func(*session) error{"yaml": exportYAML}, columns: []column{
		memberColumn("NAME", "name"), memberColumn("CAPACITY", "capacity"), memberColumn("HELD", "held"), memberColumn("TASKS WAIT", "pending_tasks"),
		{"TROUBLE", troubleCodes},
		memberColumn("LEASE", "lease_ms"), memberColumn("PAUSED", "paused"),
		memberColumn("OPENS", "opens_at"), memberColumn("CLOSES", "closes_at"), memberColumn("UPDATED", "updated_at"),
	}}, "List pools by name, held slots, waiting tasks or trouble", addPoolFilters)
	verbs = append(verbs, p.requestCommand("get", "Show a pool", http.MethodGet, ""), createPool(p), setPool(p), applyPools(o),
		p.requestCommand("delete", "Delete a pool without open tasks; its ended batches stay", http.MethodDelete, ""),
		pausePool(p), resumePool(p),
		explainWaiting(p, "Show why the tasks of a pool wait, with the number of tasks per reason"),
		countFailures(p), showSlots(p), showHistory(p), showSeries(p), releaseSlot(p), checkGrant(p), showLimited(p), showPoolUsage(p), watchPool(p))
	return o.newGroup("pools", "Create, resize, pause and watch pools", verbs...)
}

// troubleCodes returns the codes of a pool's trouble as the text of a cell.
func troubleCodes(pool entry) string {
	var codes []string
	_ = json.Unmarshal(pool["trouble"], &codes) // an absent member means no trouble
	return strings.Join(codes, " ")
}

// addPoolFilters adds the flags by which a command filters pools.
func addPoolFilters(command *cobra.Command) {
	flags := command.Flags()
	flags.String("name", "", "only pools whose name contains this text, ignoring case")
	flags.String("sort", "", "name (default); held: largest share of held slots first; waiting: most waiting tasks first; trouble: worst trouble first")
	flags.Bool("only-trouble", false, "only pools with trouble")
	complete(command, "sort", "name", "held", "waiting", "trouble")
}

// poolFilters returns the query for the flags of addPoolFilters.
func poolFilters(flags *pflag.FlagSet) url.Values {
	q := flagQuery(flags, "name", "sort")
	if onlyTrouble, _ := flags.GetBool("only-trouble"); onlyTrouble {
		q.Set("only_trouble", "true")
	}
	return q
}

// poolFlags contains the flags for the settings of a pool.
type poolFlags struct {
	capacity     int
	lease        time.Duration
	paused       bool
	windows      windowsFlag
	limits       limitsFlag
	alwaysOpen   bool
	callers      callersFlag
	longestLease time.Duration
	longestSleep time.Duration
}

// callersFlag is a flag for a maximum number of slots. A nil maxSlots means "all".
type callersFlag struct{ maxSlots *int }

// Set parses text, a number of slots or "all", and stores it as the value of the flag.
func (f *callersFlag) Set(text string) error {
	if f.maxSlots = nil; text == "all" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return errors.New("must be a number of slots, or all")
	}
	f.maxSlots = &n
	return nil
}

// String returns an empty text, so that the help shows no default for the flag.
func (f *callersFlag) String() string { return "" }

// Type returns "number", the name of the value in the help of the flag.
func (f *callersFlag) Type() string { return "number" }

// add adds the flags of the settings of a pool to flags.
func (p *poolFlags) add(flags *pflag.FlagSet) {
	flags.IntVar(&p.capacity, "capacity", 0, "number of slots: how many devices and callers may hold one at once")
	flags.DurationVar(&p.lease, "lease", 0, "how long a device may hold a slot before it must renew (default 5m)")
	flags.BoolVar(&p.paused, "paused", false, "grant nothing new")
	flags.Var(&p.callers, "callers", "maximum number of slots that callers (programs that are not devices) may hold; 0: none; all: no limit (default)")
	flags.DurationVar(&p.longestLease, "longest-lease", 0, "the longest lease that a caller may ask for (default 24h)")
	flags.DurationVar(&p.longestSleep, "longest-sleep", 0, "the longest time until a device far back in the queue is asked to report again (default 10m)")
	p.windows.add(flags)
}

// body returns the fields of a request whose flags were given, by their names in the API.
func (p *poolFlags) body(flags *pflag.FlagSet) (map[string]any, error) {
	body := changedFields(flags, map[string]field{
		"capacity": {"capacity", p.capacity}, "lease": {"lease_ms", p.lease.Milliseconds()},
		"paused": {"paused", p.paused}, "callers": {"callers", p.callers.maxSlots},
		"longest-lease": {"longest_lease_ms", p.longestLease.Milliseconds()},
		"longest-sleep": {"longest_sleep_ms", p.longestSleep.Milliseconds()}, "window": {"windows", p.windows},
	})
	if p.alwaysOpen {
		body["windows"] = nil // the default: no windows
	}
	return body, p.limits.addTo(body)
}

// createPool returns the command `pools create`.
func createPool(pools noun) *cobra.Command {
	settings := &poolFlags{}
	command := pools.objectCommand("create", "Create a pool", func(s *session, pool string) error {
		path := operators.Path("pools", pool)
		body, err := settings.body(s.cmd.Flags())
		if err != nil {
			return err
		}
		_, err = s.Get(s.cmd.Context(), path, nil)
		if err == nil {
			return advisedError{fmt.Errorf("pool %s already exists", pool), "change it: dispatcher pools set " + pool}
		}
		if !operators.HasStatus(err, http.StatusNotFound) {
			return err
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPut, Path: path, Body: body})
	})
	settings.add(command.Flags())
	settings.limits.add(command.Flags())
	return requireFlag(command, "capacity")
}

// setPool returns the command `pools set`, which changes the settings of a pool.
func setPool(pools noun) *cobra.Command {
	settings := &poolFlags{}
	command := pools.objectCommand("set", "Change the settings of a pool that are given as flags; the others stay unchanged", func(s *session, pool string) error {
		body, err := settings.body(s.cmd.Flags())
		if err != nil {
			return err
		}
		if len(body) == 0 {
			return usageError{errors.New("nothing to change: give at least one of --capacity, --lease, --paused, --callers, --longest-lease, --longest-sleep, --window, --always-open, --limits, --no-limits")}
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", pool), Body: body})
	})
	settings.add(command.Flags())
	settings.limits.addChange(command)
	command.Flags().BoolVar(&settings.alwaysOpen, "always-open", false, "remove all windows")
	command.MarkFlagsMutuallyExclusive("window", "always-open")
	return command
}

// showSlots returns the command that shows the slots of a pool.
func showSlots(pools noun) *cobra.Command {
	all := false
	command := pools.objectCommand("slots", "Show the holders of a pool's slots", func(s *session, pool string) error {
		var slots slotList
		return s.getAndShow(operators.Path("pools", pool, "slots"), nil, &slots, func() error { return slots.writeTable(s.console.out, all) })
	})
	command.Flags().BoolVar(&all, "all", false, "also show the free slots")
	return command
}

// slotList is the response to GET /v1/pools/{pool}/slots. The slots stay JSON objects.
type slotList struct {
	Capacity, Waiting int64
	Held, Reserved    int
	Slots             []entry
}

// writeTable writes the counts and a table of the slots that are held or offered. If withFree is true, the table also contains the free
// slots.
func (l slotList) writeTable(out io.Writer, withFree bool) error {
	_, _ = fmt.Fprintf(out, "%s, %d held, %d reserved; %s\n", countText(l.Capacity, "slot", "slots"), l.Held, l.Reserved, countText(l.Waiting, "device in line", "devices in line"))
	if !withFree && l.Held+l.Reserved == 0 {
		return nil
	}
	t := terminal.NewTable(out, "SLOT", "STATE", "DEVICE", "TASK", "TOKEN", "SINCE", "LEASE UNTIL")
	for _, e := range l.Slots {
		if withFree || e.text("state") != "free" {
			t.AddRow(e.text("slot"), slotState(e), slotHolder(e), e.text("task"), e.text("token"), e.text("since"), e.text("lease_until"))
		}
	}
	return t.Flush()
}

// slotHolder returns the name of the device or the caller that has the slot. It is empty for a free slot.
func slotHolder(slot entry) string {
	if caller := slot.text("caller"); caller != "" {
		return caller + " (caller)"
	}
	return slot.text("device")
}

// slotState returns the state of a slot as the text of a cell, and in it whether the device was asked to stop.
func slotState(slot entry) string {
	if slot.text("cancel") != "" {
		return slot.text("state") + ", asked to stop"
	}
	return slot.text("state")
}

// releaseSlot returns the command that takes a slot back from its holder.
func releaseSlot(pools noun) *cobra.Command {
	var reason string
	var now bool
	var token int64
	command := &cobra.Command{
		Use:   "release POOL SLOT",
		Short: "Take a slot back from the device that holds it",
		Long: `Take a slot back from the device that holds it. Its task ends cancelled.

The reply to its next report asks the device to stop. The slot is free when the device
sends the result, or at the end of its lease: the capacity is never exceeded. With --now
the slot is free at once, and the device may use the external system until its lease ends.`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: pools.completeNames(1),
		RunE: pools.withSession(func(s *session, args []string) error {
			body := operators.Release{Reason: reason, AtOnce: now, Token: max(token, 0)}
			return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path("pools", args[0], "slots", args[1], "release"), Body: body})
		}),
	}
	command.Flags().StringVar(&reason, "reason", "", "reason for the audit log; required")
	command.Flags().BoolVar(&now, "now", false, "free the slot at once: one device more than the capacity may then use the external system")
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the grant; 0: the current grant")
	return requireFlag(command, "reason")
}

// checkGrant returns the command that checks whether a grant is in force.
func checkGrant(pools noun) *cobra.Command {
	return &cobra.Command{
		Use: "grant POOL TOKEN", Short: "Check whether a grant is in force, as the external system does", Args: cobra.ExactArgs(2),
		ValidArgsFunction: pools.completeNames(1),
		RunE: pools.withSession(func(s *session, args []string) error {
			text, err := s.Get(s.cmd.Context(), operators.Path("pools", args[0], "grants", args[1]), nil)
			if err != nil {
				return err
			}
			if e, err := readEntry(text); err == nil && e.text("alive") == "" {
				return s.console.show(text, "lease_ms") // without alive there is no grant
			}
			return s.console.show(text)
		}),
	}
}

// watchPool returns the command `pools watch`.
func watchPool(pools noun) *cobra.Command {
	return pools.objectCommand("watch", "Show how full a pool is, a line for each change, until Ctrl-C", func(s *session, pool string) error {
		var last [4]int
		table := terminal.NewTable(s.console.out, "TIME                ", "CAPACITY", "HELD", "RESERVED", "IN LINE")
		return s.console.repeatRead(s.cmd.Context(), func() (bool, error) {
			var slots operators.Slots
			text, err := readAnswer(s.cmd.Context(), s.Client, operators.Request{Method: http.MethodGet, Path: operators.Path("pools", pool, "slots")}, &slots)
			if err != nil {
				return false, err
			}
			counts := [4]int{slots.Capacity, slots.Held, slots.Reserved, slots.Waiting}
			if counts == last {
				return false, nil
			}
			last = counts
			if s.console.isJSON {
				return false, writeJSON(s.console.out, text, "")
			}
			table.AddRow(time.Now().UTC().Format("2006-01-02 15:04:05Z"), fmt.Sprint(slots.Capacity), fmt.Sprint(slots.Held), fmt.Sprint(slots.Reserved), fmt.Sprint(slots.Waiting))
			return false, table.Flush()
		})
	})
}
