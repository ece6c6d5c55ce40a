package api

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	typeEvents = "text/event-stream"

	maxLine = 128 << 10 // bytes of one line; a payload's may be escaped
)

// Limits of a long body. A zero is that of DefaultLimits.
type Limits struct {
	Stream int64         // bytes of a streamed batch
	Tasks  int           // of one batch
	Pause  time.Duration // the longest a client may send nothing
}

// DefaultLimits are those of docs/protocol.md.
func DefaultLimits() Limits {
	return Limits{Stream: 2 << 30, Tasks: 1_000_000, Pause: 30 * time.Second}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	return Limits{cmp.Or(l.Stream, d.Stream), cmp.Or(l.Tasks, d.Tasks), cmp.Or(l.Pause, d.Pause)}
}

// checkCount refuses a batch at its first task that is too many.
func (l Limits) checkCount(tasks int) error {
	if tasks > l.Tasks {
		return fmt.Errorf("at most %d tasks in a batch", l.Tasks)
	}
	return nil
}

// lines reads a body of tasks or devices, one after the other.
type lines[T any] interface {
	// next returns io.EOF behind the last line. An error of a line names it.
	next() (T, error)
	// line is the number of the one last read, from 1.
	line() int
}

// streamType is that of a body in lines; empty: it is none.
func streamType(ctx huma.Context) string {
	contentType, _, _ := mime.ParseMediaType(ctx.Header("Content-Type"))
	if contentType != operators.TypeCSV && contentType != operators.TypeNDJSON {
		return ""
	}
	return contentType
}

// streamed takes batches whose body is a stream, before huma would read it
// whole: the batch's fields are in the query then.
func (b *batches) streamed(operations huma.API) step {
	return func(ctx huma.Context, next func(huma.Context)) error {
		contentType := streamType(ctx)
		if contentType == "" {
			next(ctx)
			return nil
		}
		url := ctx.URL()
		post, mode, err := queryBatch(operations, url.Query())
		if err != nil {
			return err
		}
		made, err := b.createStreamed(ctx, contentType, post, mode)
		if err != nil {
			return err
		}
		ctx.SetHeader("Content-Type", "application/json")
		ctx.SetStatus(made.Status)
		_ = operations.Marshal(ctx.BodyWriter(), "application/json", made.Body) // a client that left
		return nil
	}
}

func (b *batches) createStreamed(ctx huma.Context, contentType string, post operators.NewBatch, mode operators.QueueMode) (*created[operators.BatchCreated], error) {
	batch, err := b.read(post)
	if err != nil {
		return nil, err
	}
	body := b.limits.patient(ctx, b.limits.Stream)
	whole, free, err := b.spool.keep(ctx.Context(), body)
	if err != nil {
		return nil, body.explain(err)
	}
	defer free()
	var list lines[operators.NewTask] = newNDJSON[operators.NewTask](whole, "device, payload and priority")
	if contentType == operators.TypeCSV {
		if list, err = newCSV(whole, "the members of the payload"); err != nil {
			return nil, err
		}
	}
	leave, err := b.turnOfRepeats(ctx.Context(), post)
	if err != nil {
		return nil, err
	}
	defer leave()
	return b.queue(ctx.Context(), post, batch, store.Queue{Tasks: checked(post, linesOf(list), b.limits)}, mode)
}

// linesOf are the lines of a streamed batch.
func linesOf(list lines[operators.NewTask]) numbered {
	return numbered{form: "line %d", number: func(int) int { return list.line() }, bad: badLine, entries: func(yield func(operators.NewTask, error) bool) {
		for {
			entry, err := list.next()
			if errors.Is(err, io.EOF) || !yield(entry, err) {
				return
			}
		}
	}}
}

func badLine(line int, err error) error {
	if err == nil {
		return nil
	}
	return problem(http.StatusUnprocessableEntity, codeOfEntry(err, codeInvalidLine), fmt.Sprintf("line %d: %v", line, err)).because(err)
}

// newTask checks one entry.
func newTask(t operators.NewTask, shared overlay) (store.NewTask, error) {
	if _, err := devices.ParseID(t.Device); err != nil {
		return store.NewTask{}, err
	}
	if t.Priority != nil && (*t.Priority < -maxPriority || *t.Priority > maxPriority) {
		return store.NewTask{}, fmt.Errorf("priority: between %d and %d", -maxPriority, maxPriority)
	}
	payload := shared.over(present(t.Payload))
	if err := checkPayload(payload); err != nil {
		return store.NewTask{}, err
	}
	return store.NewTask{Device: t.Device, Payload: payload, Priority: t.Priority}, nil
}

// ndjson reads a line of JSON for each entry; empty lines are skipped.
type ndjson[T any] struct {
	scanner *bufio.Scanner
	members string // of an entry, for people
	number  int
}

func newNDJSON[T any](body io.Reader, members string) *ndjson[T] {
	scanner := bufio.NewScanner(body)
	scanner.Buffer(make([]byte, 0, 4<<10), maxLine)
	return &ndjson[T]{scanner: scanner, members: members}
}

func (n *ndjson[T]) line() int { return n.number }

func (n *ndjson[T]) next() (entry T, err error) {
	for n.scanner.Scan() {
		n.number++
		if text := bytes.TrimSpace(n.scanner.Bytes()); len(text) > 0 {
			err = readLine(text, &entry, n.members)
			return entry, err
		}
	}
	if err = n.scanner.Err(); err == nil {
		return entry, io.EOF
	}
	n.number++
	if errors.Is(err, bufio.ErrTooLong) {
		err = errLongLine
	}
	return entry, err
}

var errLongLine = fmt.Errorf("longer than %d bytes", maxLine)

func readLine(text []byte, entry any, members string) error {
	if err := strictJSON(text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(entry); err != nil {
		return fmt.Errorf("not a JSON object with %s: %w", members, err)
	}
	if d.More() {
		return errors.New("more than one JSON value")
	}
	return nil
}

// patientReader reads a long body: the time limit is for each pause and not
// for all of it, and its size has an end.
type patientReader struct {
	from     io.Reader
	deadline func(time.Time)
	pause    time.Duration
	limit    int64
	left     int64
	failed   error // of the body, which a parser may hide
}

// patient reads at most limit bytes.
func (l Limits) patient(ctx huma.Context, limit int64) *patientReader {
	_, w := humago.Unwrap(ctx)
	connection := http.NewResponseController(w)
	return &patientReader{from: ctx.BodyReader(), pause: l.Pause, limit: limit, left: limit, deadline: func(t time.Time) {
		_ = connection.SetReadDeadline(t) // a test's recorder has none
		_ = connection.SetWriteDeadline(time.Time{})
	}}
}

// Read reads a part of the body.
func (r *patientReader) Read(b []byte) (int, error) {
	r.deadline(time.Now().Add(r.pause))
	n, err := r.from.Read(b)
	if r.left -= int64(n); r.left < 0 {
		r.failed = &http.MaxBytesError{Limit: r.limit}
		return 0, r.failed
	}
	if errors.Is(err, io.EOF) {
		r.deadline(time.Time{}) // all is here: what follows takes the ledger's time
	} else if err != nil {
		r.failed = err
	}
	return n, err
}

// explain says of an error that it was the body's, if it was.
func (r *patientReader) explain(err error) error {
	var large *http.MaxBytesError
	switch {
	case err == nil || r.failed == nil:
		return err
	case errors.As(r.failed, &large):
		return r.failed
	}
	return problem(http.StatusRequestTimeout, codeBodyIncomplete, "body: broke off").because(r.failed)
}
