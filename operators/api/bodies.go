package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/internal/fair"
)

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

// bounded fails where a reader takes more than is left, which would be kept in memory. A
// reader reads ahead by no more than its buffer.
type bounded struct {
	from   io.Reader
	left   int
	beyond error
}

// Read reads a part.
func (r *bounded) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, r.beyond
	}
	n, err := r.from.Read(b)
	r.left -= n
	return n, err
}

const (
	spoolMemory = 1 << 20 // bytes of a body that are kept in memory
	spoolBodies = 5       // at once; others wait for their turn
	spoolEach   = 2       // of one operator token
)

// spool keeps the bodies of long batches until they are whole. A transaction
// that is open for as long as a sender takes would hold back the vacuum of the
// ledger, and every claim would read the rows that are left. A long body is in a
// file without a name, which nothing can leave behind.
type spool struct {
	dir   string // empty: where the system keeps temporary files
	turns *fair.Shares
}

// keep reads all of a body. The result may be read until free is called.
func (s *spool) keep(ctx context.Context, body io.Reader) (whole io.ReadSeeker, free func(), err error) {
	leave, err := await(ctx, s.turns)
	if err != nil {
		return nil, nil, fmt.Errorf("waiting for the turn of a body: %w", err)
	}
	start := new(bytes.Buffer)
	switch _, err = io.CopyN(start, body, spoolMemory); {
	case errors.Is(err, io.EOF):
		return bytes.NewReader(start.Bytes()), leave, nil
	case err != nil:
		leave()
		return nil, nil, err //nolint:wrapcheck // the body's own
	}
	file, err := s.file(start, body)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return file, func() { _ = file.Close(); leave() }, nil
}

func (s *spool) file(start, rest io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(s.dir, "dispatcher-batch-*")
	if err != nil {
		return nil, noRoom(err)
	}
	if err = os.Remove(file.Name()); err != nil {
		err = noRoom(err)
	}
	for _, part := range []io.Reader{start, rest} {
		if err == nil {
			_, err = io.Copy(room{file}, part)
		}
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// room tells an error of the disk from one of the body.
type room struct{ file *os.File }

// Write is the file's.
func (r room) Write(b []byte) (int, error) {
	n, err := r.file.Write(b)
	if err != nil {
		err = noRoom(err)
	}
	return n, err
}

func noRoom(err error) error {
	return problem(http.StatusInsufficientStorage, codeNoRoom, "body: there is no room to keep it until it is whole").because(err)
}
