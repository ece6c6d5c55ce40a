package main

import (
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// queueView shows the position of a holder in the queue, as a line of text. On a terminal it updates the
// line. Otherwise it writes a new line at most every lineEvery.
type queueView struct {
	console    *console
	bar        *terminal.Progress
	isTerminal bool      // whether messages go to a terminal
	shownAt    time.Time // time of the latest line
}

// newQueueView returns a queueView that has shown nothing yet.
func newQueueView(output *console) *queueView {
	return &queueView{console: output, bar: terminal.NewProgress(output.errs), isTerminal: terminal.IsTerminal(output.errs)}
}

// show writes why the holder still waits, and the estimated time until the start. lease is the last answer of the server; err is the error
// of the last request, or nil.
func (v *queueView) show(lease operators.Lease, err error) {
	text := lease.Detail
	switch {
	case err != nil:
		text = err.Error()
	case lease.Position != nil:
		text = fmt.Sprintf("position %d in the queue", *lease.Position)
	}
	if lease.EstimatedStart != nil {
		if left := time.Until(lease.EstimatedStart.Time).Round(time.Second); left > 0 {
			text += fmt.Sprintf(", estimated start in %s", left)
		}
	}
	text = "Waiting for a slot: " + text
	v.bar.Show("%s", text)
	if now := time.Now(); !v.isTerminal && now.Sub(v.shownAt) >= lineEvery {
		v.shownAt = now
		v.console.note("%s", text)
	}
}
