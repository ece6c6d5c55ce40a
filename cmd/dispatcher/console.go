package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// jsonIndent is the indentation of JSON documents.
const jsonIndent = "  "

// watchEvery is the pause between two reads of a watched pool or batch.
const watchEvery = time.Second

var errNotConfirmed = errors.New("not confirmed; nothing was changed")

// console is the input and the output of one command.
type console struct {
	in     io.Reader
	out    io.Writer // data
	errs   io.Writer // messages
	isJSON bool      // whether data is written as JSON instead of tables
}

// note writes a message for people to errs, formatted as in fmt.Fprintf.
func (c *console) note(format string, args ...any) {
	_, _ = fmt.Fprintln(c.errs, terminal.EscapeUnprintable(fmt.Sprintf(format, args...)))
}

// show writes the members of object, one per line, except the members named in omitted. The state of a batch is its ShownState, which says
// better than the stored state and the condition what the batch does now.
// With --output json it writes the whole object unchanged.
func (c *console) show(object json.RawMessage, omitted ...string) error {
	if c.isJSON {
		return writeJSON(c.out, object, jsonIndent)
	}
	shown := map[string]string{}
	var batch operators.Batch
	if err := json.Unmarshal(object, &batch); err == nil && batch.Condition != "" { // no other object has a condition
		shown["state"] = batch.ShownState()
		omitted = append(slices.Clone(omitted), "condition")
	}
	return terminal.WriteFields(c.out, object, shown, omitted...)
}

// showWithWarnings notes the warnings in object, an answer of the API, and shows its other members except those in omitted.
func (c *console) showWithWarnings(object json.RawMessage, omitted ...string) error {
	c.noteWarnings("", object)
	return c.show(object, append(omitted, "warnings")...)
}

// writeJSON writes object as JSON to out. If indent is empty, it writes one line.
func writeJSON(out io.Writer, object any, indent string) error {
	e := json.NewEncoder(out)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	return e.Encode(object)
}

// noteWarnings notes the warnings in answer, the answer to a successful request, and returns them. Each note begins with subject.
func (c *console) noteWarnings(subject string, answer json.RawMessage) (warnings []string) {
	var warned operators.WarningList
	_ = json.Unmarshal(answer, &warned) // an answer without this member has no warnings
	for _, w := range warned.Warnings {
		c.note("Warning: %s%s", subject, terminal.EscapeUnprintable(w))
	}
	return warned.Warnings
}

// confirm asks the user question, usually whether to change many tasks or devices. If isConfirmed is true (the flag --yes), it does not
// ask. It fails if the user does not agree, or if in is not a terminal.
func (c *console) confirm(isConfirmed bool, question string) error {
	if isConfirmed {
		return nil
	}
	if !terminal.IsTerminal(c.in) {
		return usageError{fmt.Errorf("%s: --yes is required, because standard input is not a terminal", question)}
	}
	_, _ = fmt.Fprintf(c.errs, "%s? [y/N] ", terminal.EscapeUnprintable(question))
	answer, _ := bufio.NewReader(c.in).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errNotConfirmed
	}
	return nil
}

// statusLine shows a text that changes: on a terminal one line that each update overwrites, otherwise a new line now and then.
type statusLine struct {
	*terminal.Progress

	console    *console
	isTerminal bool
	key, text  string    // of the latest line that was not on a terminal
	writtenAt  time.Time // when this line was written
}

// lineEvery is the minimum time between two lines of a statusLine that is not on a terminal.
const lineEvery = 10 * time.Second

// newStatusLine returns a line that has shown nothing yet.
func (c *console) newStatusLine() *statusLine {
	return &statusLine{Progress: terminal.NewProgress(c.errs), console: c, isTerminal: terminal.IsTerminal(c.errs)}
}

// update shows bar and text on a terminal. Otherwise it writes text alone, if text has changed, and if key has changed or the latest line is
// older than lineEvery.
func (l *statusLine) update(key, bar, text string) {
	if l.isTerminal {
		l.Show("%s%s", bar, text)
	} else if text != l.text && (key != l.key || time.Since(l.writtenAt) >= lineEvery) {
		l.console.note("%s", text)
		l.key, l.text, l.writtenAt = key, text, time.Now()
	}
}

// updateWaiting shows why the holder of a lease still waits, and when it is expected to start. err is the error of the latest request, or nil.
func (l *statusLine) updateWaiting(lease operators.Lease, err error) {
	text := lease.Detail
	switch {
	case err != nil:
		text = err.Error()
	case lease.Position != nil:
		text = fmt.Sprintf("position %d in the queue; %s", *lease.Position, lease.Detail)
	}
	if lease.EstimatedStart != nil {
		if left := time.Until(lease.EstimatedStart.Time).Round(time.Second); left > 0 {
			text += fmt.Sprintf("; estimated start in %s", left)
		}
	}
	l.update("", "", "Waiting for a slot: "+text)
}

// repeatRead calls read every watchEvery until isOver is true, or until read fails with an error
// that is not transient. It notes transient errors. If ctx ends first (Ctrl-C), it returns nil.
func (c *console) repeatRead(ctx context.Context, read func() (isOver bool, err error)) error {
	for ctx.Err() == nil {
		switch isOver, err := read(); {
		case err == nil && isOver:
			return nil
		case err == nil || ctx.Err() != nil:
		case !operators.IsTransient(err):
			return err
		default:
			c.note("%v", err)
		}
		_ = operators.Sleep(ctx, watchEvery) // the loop ends if ctx has ended
	}
	return nil
}
