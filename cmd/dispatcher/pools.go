package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func poolsCommand() *cobra.Command {
	o := &operatorFlags{}
	p := o.poolCommands()
	list := listSpec{path: operators.Path("pools"), exportYAML: exportPoolFile, columns: slices.Concat(
		newColumns("NAME", "CAPACITY", "HELD", "TASKS WAIT=pending_tasks"), []tableColumn{{"TROUBLE", troubleCodes}},
		newColumns("LEASE=lease_ms", "PAUSED", "OPENS=opens_at", "CLOSES=closes_at", "UPDATED=updated_at"))}
	verbs := o.newListCommands(list, "List pools by name, held slots, waiting tasks or trouble", func(c *cobra.Command) { addFieldFlags(c, operators.PoolFilter{}) })
	verbs = append(verbs, p.requestCommand("get", "Show a pool", http.MethodGet, ""), createPoolCommand(p), setPoolCommand(p), applyPoolsCommand(o),
		p.requestCommand("delete", "Delete a pool without open tasks; its ended batches stay", http.MethodDelete, ""),
		pausePoolCommand(p), resumePoolCommand(p),
		explainWaitingCommand(p, "Show why the tasks of a pool wait, with the number of tasks per reason"),
		countFailuresCommand(p), showSlotsCommand(p), showHistoryCommand(p), showSeriesCommand(p), releaseSlotCommand(p), checkGrantCommand(p), showLimitedCommand(p), showPoolUsageCommand(p), watchPoolCommand(p))
	return o.groupCommand("pools", "Create, resize, pause and watch pools", verbs...)
}

// troubleCodes returns the codes of a pool's trouble as the text of a cell.
func troubleCodes(pool jsonObject) string {
	var codes []string
	_ = json.Unmarshal(pool["trouble"], &codes) // an absent member means no trouble
	return strings.Join(codes, " ")
}

func addPoolSettings(command *cobra.Command) {
	addFieldFlags(command, operators.PoolSettings{})
	command.Flags().Var(new(callersFlag), "callers", "maximum number of slots that callers (programs that are not devices) may hold; 0: none; all: no limit (default)")
}

func createPoolCommand(pools commandFactory) *cobra.Command {
	command := pools.objectCommand("create", "Create a pool", func(s *session, pool string) error {
		path := operators.Path("pools", pool)
		switch _, err := s.Get(s.cmd.Context(), path, nil); {
		case err == nil:
			return advisedError{fmt.Errorf("pool %s already exists", pool), "change it: dispatcher pools set " + pool}
		case !operators.HasStatus(err, http.StatusNotFound):
			return err
		}
		return s.sendFlags(http.MethodPut, path)
	})
	addPoolSettings(command)
	return requireFlag(command, "capacity")
}

func setPoolCommand(pools commandFactory) *cobra.Command {
	command := pools.setCommand("Change the settings of a pool that are given as flags; the others stay unchanged")
	addPoolSettings(command)
	addClearFlag(command, "always-open", "window", "remove all windows")
	addClearFlag(command, "no-limits", "limits", "remove all policies")
	return command
}

func showSlotsCommand(pools commandFactory) *cobra.Command {
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
	Slots             []jsonObject
}

// writeTable writes the counts and a table of the slots that are held or offered. If withFreeSlots is true, the table also contains the free
// slots.
func (l slotList) writeTable(out io.Writer, withFreeSlots bool) error {
	_, _ = fmt.Fprintf(out, "%s, %d held, %d reserved; %s\n", countText(l.Capacity, "slot", "slots"), l.Held, l.Reserved, countText(l.Waiting, "device in line", "devices in line"))
	if !withFreeSlots && l.Held+l.Reserved == 0 {
		return nil
	}
	shown := slices.DeleteFunc(l.Slots, func(e jsonObject) bool { return !withFreeSlots && e.memberText("state") == "free" })
	return writeTable(out, shown, slices.Concat(newColumns("SLOT"), []tableColumn{{"STATE", slotState}, {"DEVICE", slotHolder}}, newColumns("TASK", "TOKEN", "SINCE", "LEASE UNTIL")))
}

// slotHolder returns the name of the device or the caller that has the slot. It is empty for a free slot.
func slotHolder(slot jsonObject) string {
	if caller := slot.memberText("caller"); caller != "" {
		return caller + " (caller)"
	}
	return slot.memberText("device")
}

// slotState returns the state of a slot as the text of a cell. The text also says if the device was asked to stop.
func slotState(slot jsonObject) string {
	if slot.memberText("cancel") != "" {
		return slot.memberText("state") + ", asked to stop"
	}
	return slot.memberText("state")
}

func releaseSlotCommand(pools commandFactory) *cobra.Command {
	var reason string
	var now bool
	var token int64
	command := pools.objectPartCommand("release POOL SLOT", "Take a slot back from the device that holds it", func(s *session, pool, slot string) error {
		body := operators.Release{Reason: reason, AtOnce: now, Token: max(token, 0)}
		return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path("pools", pool, "slots", slot, "release"), Body: body})
	})
	command.Long = `Take a slot back from the device that holds it. Its task ends cancelled.

The reply to its next report asks the device to stop. The slot is free when the device
sends the result, or at the end of its lease: the capacity is never exceeded. With --now
the slot is free at once, and the device may use the external system until its lease ends.`
	command.Flags().StringVar(&reason, "reason", "", "reason for the audit log; required")
	command.Flags().BoolVar(&now, "now", false, "free the slot at once: one device more than the capacity may then use the external system")
	command.Flags().Int64Var(&token, "token", 0, "fencing token of the grant; 0: the current grant")
	return requireFlag(command, "reason")
}

func checkGrantCommand(pools commandFactory) *cobra.Command {
	return pools.objectPartCommand("grant POOL TOKEN", "Check whether a grant is in force, as the external system does", func(s *session, pool, token string) error {
		text, err := s.Get(s.cmd.Context(), operators.Path("pools", pool, "grants", token), nil)
		if err != nil {
			return err
		}
		if e, err := decodeObject(text); err == nil && e.memberText("alive") == "" {
			return s.console.show(text, "lease_ms") // the grant is not in force, so it has no lease
		}
		return s.console.show(text)
	})
}

func watchPoolCommand(pools commandFactory) *cobra.Command {
	return pools.objectCommand("watch", "Show how full a pool is, a line for each change, until Ctrl-C", func(s *session, pool string) error {
		var last []string
		table := terminal.NewTable(s.console.out, "TIME                ", "CAPACITY", "HELD", "RESERVED", "IN LINE")
		return s.console.repeatRead(s.cmd.Context(), func() (bool, error) {
			var slots operators.Slots
			text, err := readAnswer(s.cmd.Context(), s.Client, operators.Request{Method: http.MethodGet, Path: operators.Path("pools", pool, "slots")}, &slots)
			counts := formatCells([]any{slots.Capacity, slots.Held, slots.Reserved, slots.Waiting})
			if err != nil || slices.Equal(counts, last) {
				return false, err
			}
			last = counts
			if s.console.isJSON {
				return false, writeJSON(s.console.out, text, "")
			}
			table.AddRow(append([]string{time.Now().UTC().Format(terminal.TimeLayout)}, counts...)...)
			return false, table.Flush()
		})
	})
}
