package main

import (
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators"
)

// payloadInQuery is the maximum size, in bytes, of a batch payload that a request carries in its
// query. It is small, because servers and proxies limit the length of URLs.
const payloadInQuery = 2 << 10

func cloneBatchCommand(batches commandFactory) *cobra.Command {
	var name string
	var failed, dryRun bool
	command := batches.objectCommand("clone", "Queue the tasks of a batch once more, as a new batch with the same settings", func(s *session, batch string) error {
		var from operators.Batch
		if err := s.Do(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: operators.Path("batches", batch)}, &from); err != nil {
			return err
		}
		now, states := time.Now(), []string{""} // the empty state selects all tasks
		if failed {
			states = []string{operators.Failed, operators.TimedOut}
		}
		clone := from.CloneSettings(now)
		if len(from.Payload) > payloadInQuery { // each task carries the payload instead
			clone.Payload, from.Payload = nil, nil
		}
		if name != "" {
			clone.Name = name
		}
		made, err := s.Batches.Stream(operators.WithKey(s.cmd.Context(), newIdempotencyKey()), clone, operators.QueueMode{DryRun: dryRun}, operators.TypeNDJSON, func() (io.ReadCloser, error) {
			return s.readClonedTasks(from, now, states), nil
		})
		if err != nil {
			return err
		}
		return s.showValue(made, "unknown")
	})
	command.Flags().StringVar(&name, "name", "", "name of the new batch (default: the name of the original)")
	command.Flags().BoolVar(&failed, "failed", false, "only the tasks that failed or timed out")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only check and count the tasks, queue nothing")
	return command
}

// readClonedTasks returns the tasks of a batch whose state is in states, as NDJSON for a new batch. It reads them from the server page by
// page while the caller reads. It drops the times of a task that are not after now.
func (s *session) readClonedTasks(batch operators.Batch, now time.Time, states []string) io.ReadCloser {
	reader, writer := io.Pipe()
	rescue.Async(func() error {
		err := rescue.Call(func() error { return s.writeClonedTasks(writer, batch, now, states) })
		return writer.CloseWithError(err) // if err is nil, the stream ends with io.EOF
	})
	return reader
}

// writeClonedTasks writes the lines that readClonedTasks returns to out. It stops with an error if the reader was closed.
func (s *session) writeClonedTasks(out io.Writer, batch operators.Batch, now time.Time, states []string) error {
	for _, state := range states {
		for task, err := range s.Tasks.List(s.cmd.Context(), operators.TaskFilter{Batch: batch.ID, State: state}) {
			if err == nil {
				err = writeJSON(out, batch.CloneTask(task, now), "") // does not escape HTML, which would make a payload near the size limit too large
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func retryBatchCommand(batches commandFactory) *cobra.Command {
	var yes, dryRun bool
	command := batches.objectCommand("retry", "Retry the tasks of a batch that ended without success", func(s *session, batch string) error {
		return s.changeMatchingTasks("retry", operators.Query("batch", batch), yes, dryRun)
	})
	addYesFlag(command, &yes)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count the tasks, change nothing")
	return command
}
