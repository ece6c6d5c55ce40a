package main

import (
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// lineView shows the position of a holder in the queue. On a terminal it updates one line.
// Otherwise it writes a line at most every lineEvery.
type lineView struct {
	console    *console
	bar        *terminal.Progress
	isTerminal bool      // whether it draws on a terminal
	shownAt    time.Time // time of the latest line
}

func newLineView(c *console) *lineView {
	return &lineView{console: c, bar: terminal.NewProgress(c.errs), isTerminal: terminal.IsTerminal(c.errs)}
}

// show writes why there is no slot yet, and the estimated time until the start.
func (v *lineView) show(l operators.Lease, err error) {
	text := l.Detail
	switch {
	case err != nil:
		text = err.Error()
	case l.Position != nil:
		text = fmt.Sprintf("position %d in line", *l.Position)
	}
	if l.EstimatedStart != nil {
		if left := time.Until(l.EstimatedStart.Time).Round(time.Second); left > 0 {
			text += fmt.Sprintf(", about %s to go", left)
		}
	}
	text = "Waiting for a slot: " + text
	v.bar.Show("%s", text)
	if now := time.Now(); !v.isTerminal && now.Sub(v.shownAt) >= lineEvery {
		v.shownAt = now
		v.console.note("%s", text)
	}
}
