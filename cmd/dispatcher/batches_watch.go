package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

const barWidth = 30

// batchProgress describes how many tasks of a batch have ended.
type batchProgress struct{ operators.Batch }

// readProgress decodes a batch of the API as its progress.
func readProgress(batch jsonObject) (decoded batchProgress) {
	_ = batch.decode(&decoded) // fields that do not fit stay empty
	return decoded
}

// countUnsuccessful returns the number of tasks that ended without success.
func (p batchProgress) countUnsuccessful() int64 {
	return p.EndedTasks() - p.Counts[operators.Succeeded]
}

// commonFailureState returns the most frequent state among the tasks that ended without success.
func (p batchProgress) commonFailureState() string {
	return slices.MaxFunc([]string{operators.Failed, operators.TimedOut, operators.Cancelled, operators.Expired, operators.Suppressed}, func(a, b string) int {
		return cmp.Compare(p.Counts[a], p.Counts[b])
	})
}

// endedText returns the number and the percentage of ended tasks, such as 41200/100000 41%.
func (p batchProgress) endedText() string {
	if p.Total == 0 {
		return "0/0"
	}
	return fmt.Sprintf("%d/%d %d%%", p.EndedTasks(), p.Total, 100*p.EndedTasks()/p.Total)
}

// summaryLine returns the whole progress in one line of text.
func (p batchProgress) summaryLine() string {
	text := fmt.Sprintf("%s, %d dispatched, %d failed", p.endedText(), p.Counts[operators.Dispatched], p.FailedTasks())
	if n := p.countUnsuccessful() - p.FailedTasks(); n > 0 {
		text += fmt.Sprintf(", %d cancelled, expired or suppressed", n)
	}
	if p.RatePerMinute != nil {
		text += fmt.Sprintf(", %.0f/min", *p.RatePerMinute)
	}
	if eta := p.ShownETA(); eta != nil {
		text += ", ends " + eta.UTC().Format(terminal.TimeLayout)
	}
	if state := p.ShownState(); state != "running" {
		text += ", " + state
	}
	if p.PausedBy != "" {
		text += " by " + p.PausedBy
	}
	if p.PauseReason != "" {
		text += ": " + p.PauseReason
	}
	return text
}

// batchWatch shows a batch in a statusLine until the batch has ended. With JSON output, it writes the batch each time the
// batch changes.
type batchWatch struct {
	*session

	batch       string
	onlyPending bool // the watch also ends when the batch has no pending task
	line        *statusLine
	last        batchProgress   // the latest progress
	text        json.RawMessage // the latest answer as received
	isOver      bool            // whether showUntilEnd read that the batch has ended
}

// newBatchWatch returns a batchWatch for the batch with this id.
func newBatchWatch(s *session, batchID string) *batchWatch {
	return &batchWatch{session: s, batch: batchID, line: s.console.newStatusLine()}
}

// showUntilEnd shows the batch until the batch has ended, and then its final counts as a table. If the user presses Ctrl-C first,
// showUntilEnd returns nil and isOver stays false.
func (w *batchWatch) showUntilEnd() error {
	ctx := w.cmd.Context()
	err := w.console.repeatRead(ctx, w.update)
	w.line.Clear()
	if err != nil || ctx.Err() != nil {
		return err
	}
	w.isOver = true
	if w.console.isJSON {
		return nil
	}
	return w.console.show(w.text, batchSettingNames()...)
}

// requireSuccess shows the batch until it has ended. It returns an error if a task did not succeed, or if the user
// presses Ctrl-C first.
func (w *batchWatch) requireSuccess() error {
	err := w.showUntilEnd()
	switch n, c := w.last.countUnsuccessful(), w.last.Counts; {
	case err != nil:
		return err
	case !w.isOver:
		return advisedError{fmt.Errorf("interrupted: batch %s continues", w.batch), "dispatcher batches watch " + w.batch + "; dispatcher batches cancel " + w.batch}
	case n > 0:
		return advisedError{
			fmt.Errorf("%d of %s did not succeed: %d failed, %d timed out, %d cancelled, %d expired, %d suppressed",
				n, countText(w.last.Total, "task", "tasks"), c[operators.Failed], c[operators.TimedOut], c[operators.Cancelled], c[operators.Expired], c[operators.Suppressed]),
			"to list them: dispatcher tasks list --batch " + w.batch + " --state " + w.last.commonFailureState(),
		}
	}
	return nil
}

// update reads the batch and shows the changes since the last update. isOver reports whether the batch has ended.
func (w *batchWatch) update() (isOver bool, err error) {
	var p batchProgress
	text, err := readAnswer(w.cmd.Context(), w.Client, operators.Request{Method: http.MethodGet, Path: operators.Path("batches", w.batch)}, &p)
	if err != nil {
		w.line.Clear()
		return false, err
	}
	line := p.summaryLine()
	isChanged := w.text == nil || line != w.last.summaryLine()
	w.last, w.text = p, text
	if w.line.isTerminal || !p.HasEnded() {
		w.line.update(p.State, terminal.Bar(p.EndedTasks(), p.Total, barWidth)+" ", line)
	}
	if w.console.isJSON && isChanged {
		err = writeJSON(w.console.out, text, "")
	}
	return p.HasEnded() || w.onlyPending && p.Counts[operators.Pending] == 0, err
}
