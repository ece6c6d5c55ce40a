package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// show writes the members of object, one per line, except the members named in omitted. It shows the condition of a batch as its state.
// With --output json it writes the whole object unchanged.
func (c *console) show(object json.RawMessage, omitted ...string) error {
	if c.isJSON {
		return writeJSON(c.out, object, jsonIndent)
	}
	return terminal.WriteFields(c.out, conditionAsState(object), omitted...)
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
