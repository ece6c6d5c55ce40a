package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// payloadInQuery is the maximum size, in bytes, of a batch payload that a request carries in its
// query. Servers and proxies limit the length of URLs.
const payloadInQuery = 2 << 10

// cloneBatch returns the command that queues a copy of a batch.
func cloneBatch(batches noun) *cobra.Command {
	var name string
	var failed, dryRun bool
	command := batches.objectCommand("clone", "Queue the tasks of a batch once more, as a new batch with the same settings", func(s *session, batch string) error {
		var from operators.Batch
		if err := s.Do(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: operators.Path("batches", batch)}, &from); err != nil {
			return err
		}
		copied := taskSelection{from, time.Now(), []string{""}}
		if failed {
			copied.states = []string{operators.Failed, operators.TimedOut}
		}
		clone := from.CloneSettings(copied.now)
		if len(from.Payload) > payloadInQuery { // each task carries the payload instead
			clone.Payload, copied.batch.Payload = nil, nil
		}
		if name != "" {
			clone.Name = name
		}
		made, err := s.Batches.Stream(operators.WithKey(s.cmd.Context(), newIdempotencyKey()), clone, operators.QueueMode{DryRun: dryRun}, operators.TypeNDJSON, func() (io.ReadCloser, error) {
			return copied.open(s.cmd.Context(), s.Tasks)
		})
		if err != nil {
			return err
		}
		text, err := json.Marshal(made)
		if err != nil {
			return err
		}
		s.console.noteWarnings("", text)
		return s.console.show(text, "unknown", "warnings")
	})
	command.Flags().StringVar(&name, "name", "", "name of the new batch (default: the name of the original)")
	command.Flags().BoolVar(&failed, "failed", false, "only the tasks that failed or timed out")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only check and count the tasks, queue nothing")
	return command
}

// taskSelection selects the tasks of a batch in some states, to queue them in a new batch. The state "" selects the tasks of all states.
type taskSelection struct {
	batch  operators.Batch
	now    time.Time // times of a task that are not after now are left out
	states []string
}

// open returns the selected tasks as NDJSON, read from the server page by page while the caller reads.
func (t taskSelection) open(ctx context.Context, client operators.Tasks) (io.ReadCloser, error) {
	next, stop := iter.Pull2(t.selectTasks(ctx, client))
	return &taskLines{next: next, stop: stop}, nil
}

// selectTasks yields a new task for each selected task, read from the server page by page. After an error it yields nothing more.
func (t taskSelection) selectTasks(ctx context.Context, client operators.Tasks) iter.Seq2[operators.NewTask, error] {
	return func(yield func(operators.NewTask, error) bool) {
		for _, state := range t.states {
			for task, err := range client.List(ctx, operators.TaskFilter{Batch: t.batch.ID, State: state}) {
				if !yield(t.batch.CloneTask(task, t.now), err) || err != nil {
					return
				}
			}
		}
	}
}

// taskLines is a reader that returns tasks as lines of JSON.
type taskLines struct {
	next func() (operators.NewTask, error, bool)
	stop func()
	line bytes.Buffer
}

// Read copies the next bytes of the tasks, one line of JSON for each task, into buffer and returns their number. After the last task, it
// returns io.EOF.
func (l *taskLines) Read(buffer []byte) (int, error) {
	for l.line.Len() == 0 {
		task, err, more := l.next()
		if err == nil && !more {
			err = io.EOF
		}
		if err == nil {
			err = writeJSON(&l.line, task, "") // does not escape HTML, which would make a payload near the size limit too large
		}
		if err != nil {
			return 0, err
		}
	}
	return l.line.Read(buffer)
}

// Close stops the reading from the server.
func (l *taskLines) Close() error {
	l.stop()
	return nil
}

// retryBatch returns the command that retries the tasks of a batch that ended without success.
func retryBatch(batches noun) *cobra.Command {
	var yes, dryRun bool
	command := batches.objectCommand("retry", "Retry the tasks of a batch that ended without success", func(s *session, batch string) error {
		return bulkChange{s.Client, s.console, "retry", operators.Query("batch", batch)}.run(s.cmd.Context(), yes, dryRun)
	})
	addYesFlag(command, &yes)
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count the tasks, change nothing")
	return command
}
