package main

import (
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// lineView shows how far a holder is in the line: on a terminal in one line, else in a
// line now and then.
type lineView struct {
	console *console
	bar     *terminal.Progress
	drawn   bool      // on a terminal
	at      time.Time // of the last line
}

func newLineView(c *console) *lineView {
	return &lineView{console: c, bar: terminal.NewProgress(c.errs), drawn: terminal.Is(c.errs)}
}

// show says why there is no slot, and when there may be one.
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
	if now := time.Now(); !v.drawn && now.Sub(v.at) >= lineEvery {
		v.at = now
		v.console.note("%s", text)
	}
}
