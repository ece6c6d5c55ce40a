package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
)

const maxMember = 1 << 20 // maximum size in bytes of a field, and of an entry of a list

// bodyList is the list of tasks or devices of a long body. The list stays in the storage of the spool.
type bodyList struct {
	name   string // tasks or devices; empty means that there is no list
	offset int64  // offset in bytes at which the list begins
	body   io.ReadSeeker
}

// bodyListKey is the context key of the bodyList of a request.
type bodyListKey struct{}

// handleLong handles long JSON batches. It removes the list of tasks or devices before huma reads the rest of the body. The list is then
// written to the ledger entry by entry. The spool limits how many long bodies are stored at once.
func (b *batches) handleLong(ctx huma.Context, next func(huma.Context)) error {
	if form, _, _ := mime.ParseMediaType(ctx.Header("Content-Type")); form != "" && form != "application/json" {
		next(ctx)
		return nil
	}
	body := b.limits.newBodyReader(ctx, maxBatchBody)
	start := new(bytes.Buffer)
	_, err := io.CopyN(start, body, smallBody)
	if errors.Is(err, io.EOF) {
		withProblems(&bodyContext{ctx, start}, next)
		return nil
	}
	if err == nil {
		err = b.passWithoutList(ctx, io.MultiReader(start, body), next)
	}
	return body.readError(err)
}

// passWithoutList stores body, the body of a request, removes its list of tasks or devices, and calls next with the short rest of the body.
func (b *batches) passWithoutList(ctx huma.Context, body io.Reader, next func(huma.Context)) error {
	stored, release, err := b.spool.storeBody(ctx.Context(), body)
	if err != nil {
		return err
	}
	defer release()
	l := &bodyList{body: stored}
	rest, err := l.readOutline()
	if err != nil {
		return err
	}
	withProblems(&bodyContext{huma.WithValue(ctx, bodyListKey{}, l), bytes.NewReader(rest)}, next)
	return nil
}

// bodyContext is a request whose body has been read already.
type bodyContext struct {
	humaContext
	body io.Reader
}

// Unwrap returns the huma context of the request, without the body that was read.
func (c *bodyContext) Unwrap() huma.Context { return c.humaContext }

// BodyReader returns a reader of the body, which was read before the request was handled.
func (c *bodyContext) BodyReader() io.Reader { return c.body }

// SetReadDeadline does nothing. The whole body was read, and net/http now only watches whether the client disconnects. A read deadline that
// expires would end the request.
func (c *bodyContext) SetReadDeadline(time.Time) error { return nil }

var errLongMember = fmt.Errorf("a field, or an entry of a list, of more than %d bytes", maxMember)

// bodyProblem returns the problem for a body that is no valid JSON.
func bodyProblem(err error) error {
	return problem(http.StatusBadRequest, codeInvalidRequest, "body: "+err.Error()).withCause(err)
}

// readOutline returns the body with null in place of its list of tasks or devices. It records the name and the offset of this list in l. An
// empty list counts as no list.
func (l *bodyList) readOutline() ([]byte, error) {
	from := &limitedReader{from: l.body, left: maxMember, limitErr: errLongMember}
	d := json.NewDecoder(from)
	token, err := d.Token()
	if err == nil && token != json.Delim('{') {
		err = errors.New("must be a JSON object")
	}
	if err != nil {
		return nil, bodyProblem(err)
	}
	rest := []byte{'{'}
	for seen := map[string]bool{}; d.More(); {
		name, err := d.Token()
		if err != nil {
			return nil, bodyProblem(err)
		}
		field, _ := name.(string)
		if seen[field] {
			return nil, bodyProblem(fmt.Errorf("%s: appears twice", field))
		}
		seen[field] = true
		value, other := json.RawMessage("null"), l.name
		if from.left = maxMember; field == "tasks" || field == "devices" {
			err = l.skip(d, from, field)
		} else {
			err = d.Decode(&value)
		}
		if err != nil {
			return nil, bodyProblem(err)
		}
		if other != "" && l.name != other {
			return nil, taskSourceProblem()
		}
		quoted, _ := json.Marshal(field) // a string always marshals
		rest = append(append(append(append(rest, quoted...), ':'), value...), ',')
		if len(rest) > maxMember {
			return nil, bodyProblem(errLongMember)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, bodyProblem(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, bodyProblem(errors.New("more than one JSON value"))
	}
	return append(bytes.TrimSuffix(rest, []byte{','}), '}'), nil
}

// skip reads past the list in field, a field of the body. decoder reads the body from input. If the list has an entry, skip records its
// name and its offset in l.
func (l *bodyList) skip(decoder *json.Decoder, input *limitedReader, field string) error {
	token, err := decoder.Token()
	if err != nil || token == nil {
		return err
	}
	if token != json.Delim('[') {
		return fmt.Errorf("%s: must be a list", field)
	}
	at := decoder.InputOffset() - 1
	for i := 0; decoder.More(); i++ {
		l.name, l.offset = field, at
		input.left = maxMember
		var entry json.RawMessage
		if err := decoder.Decode(&entry); err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
	}
	_, err = decoder.Token()
	return err
}

// entries reads the list again, entry by entry.
func (l *bodyList) entries() iter.Seq2[operators.NewTask, error] {
	return func(yield func(operators.NewTask, error) bool) {
		from := &limitedReader{from: l.body, left: maxMember, limitErr: errLongMember}
		_, err := l.body.Seek(l.offset, io.SeekStart)
		d := json.NewDecoder(from)
		if err == nil {
			_, err = d.Token()
		}
		for err == nil && d.More() {
			from.left = maxMember
			var text json.RawMessage
			var entry operators.NewTask
			if err = d.Decode(&text); err == nil {
				err = l.readEntry(text, &entry)
			}
			if err == nil && !yield(entry, nil) {
				return
			}
		}
		if err != nil {
			yield(operators.NewTask{}, err)
		}
	}
}

// readEntry decodes raw, an entry of the list, into entry.
func (l *bodyList) readEntry(raw []byte, entry *operators.NewTask) error {
	if l.name == "tasks" {
		return readLine(raw, entry, taskMembers)
	}
	if err := json.Unmarshal(raw, &entry.Device); err != nil {
		return fmt.Errorf("must be a string: %w", err)
	}
	return nil
}

// bodyListFrom returns the list of a long body, or nil if the body was short and was decoded completely.
func bodyListFrom(ctx context.Context) *bodyList {
	l, _ := ctx.Value(bodyListKey{}).(*bodyList)
	return l
}

// taskSourceProblem returns the problem for a batch that does not have exactly one of devices, tasks and select.
func taskSourceProblem() error {
	return invalid("devices, tasks, select: exactly one is required, with at least one entry")
}

// isUnknownField reports whether err is about a field that does not exist.
func isUnknownField(err error) bool {
	return strings.Contains(err.Error(), "json: unknown field") || strings.HasSuffix(err.Error(), unexpectedProperty)
}
