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

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

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

// writeMessage writes a message for people to errs, formatted as in fmt.Fprintf.
func (c *console) writeMessage(format string, args ...any) {
	_, _ = fmt.Fprintln(c.errs, terminal.EscapeUnprintable(fmt.Sprintf(format, args...)))
}

// show writes the members of object, one per line, except the members named in omittedMembers. For a batch, it writes the
// result of ShownState and not the stored state, because ShownState has more information. With --output json, it writes the
// whole object unchanged.
func (c *console) show(object json.RawMessage, omittedMembers ...string) error {
	if c.isJSON {
		return writeJSON(c.out, object, jsonIndent)
	}
	shown := map[string]string{}
	var batch operators.Batch
	if err := json.Unmarshal(object, &batch); err == nil && batch.Condition != "" { // no other object has a condition
		shown["state"] = batch.ShownState()
		omittedMembers = append(slices.Clone(omittedMembers), "condition")
	}
	return terminal.WriteFields(c.out, object, shown, omittedMembers...)
}

// showWithWarnings writes the warnings in object, an answer of the API, as messages. It shows the other members of
// object, except those in omittedMembers.
func (c *console) showWithWarnings(object json.RawMessage, omittedMembers ...string) error {
	c.writeWarnings("", object)
	return c.show(object, append(omittedMembers, "warnings")...)
}

// writeJSON writes object as JSON to out. If indent is empty, it writes one line.
func writeJSON(out io.Writer, object any, indent string) error {
	e := json.NewEncoder(out)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	return e.Encode(object)
}

// writeWarnings writes each warning in answer as a message that begins with subject, and returns the warnings. answer is
// the answer to a successful request.
func (c *console) writeWarnings(subject string, answer json.RawMessage) (warnings []string) {
	var warned operators.WarningList
	_ = json.Unmarshal(answer, &warned) // an answer without this member has no warnings
	for _, w := range warned.Warnings {
		c.writeMessage("Warning: %s%s", subject, terminal.EscapeUnprintable(w))
	}
	return warned.Warnings
}

// confirm shows the text in question and asks the user for a yes, usually before many tasks or devices are changed. If isConfirmed is true
// (the flag --yes), confirm does not ask. It returns an error if the user does not agree, or if the input is not a terminal.
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

// statusLine shows a text that changes. On a terminal, each update overwrites one line. If the output is not a terminal, some updates write
// a new line.
type statusLine struct {
	*terminal.Progress

	console     *console
	isTerminal  bool
	phase, text string    // of the latest line; only if the output is not a terminal
	writtenAt   time.Time // when the latest line was written
}

// showWhile calls work. On a terminal, it shows text and the time since the start every watchEvery, until work returns.
func (c *console) showWhile(text string, work func() error) error {
	line, started, tick := c.newStatusLine(), time.Now(), time.NewTicker(watchEvery)
	defer tick.Stop()
	defer line.Clear()
	for result := rescue.Async(work); ; {
		select {
		case err := <-result:
			return err
		case <-tick.C:
			line.Show("%s: %s", text, time.Since(started).Round(time.Second))
		}
	}
}

// lineEvery is the minimum time between two lines of a statusLine that is not on a terminal.
const lineEvery = 10 * time.Second

func (c *console) newStatusLine() *statusLine {
	return &statusLine{Progress: terminal.NewProgress(c.errs), console: c, isTerminal: terminal.IsTerminal(c.errs)}
}

// update shows progressBar and text on a terminal. Without a terminal, it writes only text, and only if text has changed. In
// addition, either phase must have changed, or the last written line must be older than lineEvery.
func (l *statusLine) update(phase, progressBar, text string) {
	if l.isTerminal {
		l.Show("%s%s", progressBar, text)
	} else if text != l.text && (phase != l.phase || time.Since(l.writtenAt) >= lineEvery) {
		l.console.writeMessage("%s", text)
		l.phase, l.text, l.writtenAt = phase, text, time.Now()
	}
}

// updateWaiting shows why the holder of a lease still waits, and when its lease is expected to start. requestErr is the
// error of the latest request, or nil.
func (l *statusLine) updateWaiting(lease operators.Lease, requestErr error) {
	text := lease.Detail
	switch {
	case requestErr != nil:
		text = requestErr.Error()
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

// repeatRead calls read every watchEvery until isOver is true, or until read returns an error that is not transient. It
// writes transient errors as messages. If ctx ends first (Ctrl-C), it returns nil, as
// if isOver were true.
func (c *console) repeatRead(ctx context.Context, read func() (isOver bool, err error)) error {
	for ctx.Err() == nil {
		switch isOver, err := read(); {
		case err == nil && isOver:
			return nil
		case err == nil || ctx.Err() != nil:
		case !operators.IsTransient(err):
			return err
		default:
			c.writeMessage("%v", err)
		}
		_ = operators.Sleep(ctx, watchEvery) // the loop ends if ctx has ended
	}
	return nil
}
