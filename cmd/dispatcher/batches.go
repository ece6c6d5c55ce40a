package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func batchesCommand() *cobra.Command {
	o := &operatorFlags{}
	b := o.batchCommands()
	list := listSpec{path: operators.Path("batches"), columns: slices.Concat(newColumns("ID", "NAME", "POOL"), []tableColumn{
		{"STATE", func(e jsonObject) string { return readProgress(e).ShownState() }},
		{"DONE", func(e jsonObject) string { return readProgress(e).endedText() }},
		{"FAILED", func(e jsonObject) string { return strconv.FormatInt(readProgress(e).FailedTasks(), 10) }},
		{"DISPATCHED", func(e jsonObject) string { return strconv.FormatInt(readProgress(e).Counts[operators.Dispatched], 10) }},
		{"ETA", func(e jsonObject) string {
			if readProgress(e).ShownETA() == nil {
				return ""
			}
			return e.memberText("eta")
		}},
	}, newColumns("CREATED=created_at"))}
	verbs := o.newListCommands(list, "List batches, by default newest first", addBatchFilters)
	verbs = append(verbs, getBatchCommand(b), createBatchCommand(o), cloneBatchCommand(b), retryBatchCommand(b), setBatchCommand(b),
		b.pauseCommand("Pause a batch: grant no more of its tasks; dispatched tasks continue", batchSettingNames()...),
		b.requestCommand("resume", "End the pause of a batch", http.MethodPost, "/resume", batchSettingNames()...),
		cancelBatchCommand(b), explainWaitingCommand(b, "Show why the tasks of a batch wait, with the number of tasks per reason"), countFailuresCommand(b),
		b.objectCommand("watch", "Show the progress of a batch until it has ended", func(s *session, batch string) error { return newBatchWatch(s, batch).showUntilEnd() }),
		batchResultsCommand(b))
	return o.groupCommand("batches", "Queue tasks in batches, and control each batch", verbs...)
}

func addBatchFilters(command *cobra.Command) {
	addFieldFlags(command, operators.BatchFilter{})
	command.MarkFlagsMutuallyExclusive("name", "pool", "kind")
}

// requireOneID returns an error unless args has exactly one argument, an id of at least 1.
func requireOneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("accepts 1 arg(s), received %d", len(args))
	}
	if n, err := strconv.ParseInt(args[0], 10, 64); err != nil || n < 1 {
		return fmt.Errorf("%q is not a number >= 1", args[0])
	}
	return nil
}

func getBatchCommand(batches commandFactory) *cobra.Command {
	var watch bool
	command := batches.objectCommand("get", "Show a batch and its counts", func(s *session, batch string) error {
		if watch {
			return newBatchWatch(s, batch).showUntilEnd()
		}
		return s.sendAndShow(operators.Request{Method: http.MethodGet, Path: operators.Path("batches", batch)})
	})
	command.Flags().BoolVarP(&watch, "watch", "w", false, "show the progress until the batch has ended, as batches watch does")
	return command
}

func setBatchCommand(batches commandFactory) *cobra.Command {
	command := batches.setCommand("Change the settings of a batch that are given as flags; the others stay unchanged")
	addFieldFlags(command, operators.BatchPatch{})
	addClearFlag(command, "never-expires", "not-after", "remove the time of --not-after")
	addClearFlag(command, "no-max-wait", "max-wait", "remove the limit of --max-wait")
	addClearFlag(command, "always-open", "window", "remove all windows")
	addClearFlag(command, "no-limits", "limits", "remove all policies")
	return command
}

func cancelBatchCommand(batches commandFactory) *cobra.Command {
	var yes bool
	command := batches.objectCommand("cancel", "Cancel a batch: waiting tasks are cancelled, the devices of dispatched tasks are asked to stop", func(s *session, batch string) error {
		path := operators.Path("batches", batch)
		var current operators.Batch
		if err := s.Do(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: path}, &current); err != nil {
			return err
		}
		called := strings.TrimSpace(batch + " " + current.Name)
		question := fmt.Sprintf("Cancel batch %s: %s, %d dispatched", called, countText(current.Counts[operators.Pending], "task waits", "tasks wait"), current.Counts[operators.Dispatched])
		if err := s.console.confirm(yes, question); err != nil {
			return err
		}
		request, watch := operators.Request{Method: http.MethodPost, Path: path + "/cancel"}, newBatchWatch(s, batch)
		if watch.onlyPending = watch.line.isTerminal; !watch.onlyPending {
			return s.sendAndShow(request, batchSettingNames()...)
		}
		if _, err := s.Call(s.cmd.Context(), request); err != nil {
			return err
		}
		return watch.showUntilEnd()
	})
	addYesFlag(command, &yes)
	return command
}

// batchSettingNames returns the names of the members of a batch that are settings. Actions such as cancel and watch do not show these
// members.
func batchSettingNames() (names []string) {
	return []string{
		"kind", "priority", "weight", "lane", "not_before", "not_after", "max_wait_ms", "windows", "finish_inside", "opens_at", "closes_at", "max_attempts", "retry_on",
		"retry_backoff_ms", "on_lost", "lease_ms", "max_run_ms", "abort", "created_at",
	}
}
