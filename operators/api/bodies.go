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

// patientReader reads a long body. Its time limit applies to each pause, not to the whole body, and its size is limited.
type patientReader struct {
	from     io.Reader
	deadline func(time.Time)
	pause    time.Duration
	limit    int64
	left     int64
	failed   error // error of reading the body, which a parser may hide
}

// patient returns a reader of the request's body that reads at most limit bytes.
func (l Limits) patient(ctx huma.Context, limit int64) *patientReader {
	_, w := humago.Unwrap(ctx)
	connection := http.NewResponseController(w)
	return &patientReader{from: ctx.BodyReader(), pause: l.Pause, limit: limit, left: limit, deadline: func(t time.Time) {
		_ = connection.SetReadDeadline(t) // the ResponseWriter of a test has no deadlines
		_ = connection.SetWriteDeadline(time.Time{})
	}}
}

// Read reads a part of the body. Before each read it renews the read deadline.
func (r *patientReader) Read(b []byte) (int, error) {
	r.deadline(time.Now().Add(r.pause))
	n, err := r.from.Read(b)
	if r.left -= int64(n); r.left < 0 {
		r.failed = &http.MaxBytesError{Limit: r.limit}
		return 0, r.failed
	}
	if errors.Is(err, io.EOF) {
		r.deadline(time.Time{}) // the body is complete: the rest of the time belongs to the ledger
	} else if err != nil {
		r.failed = err
	}
	return n, err
}

// explain returns the error of reading the body if there was one, otherwise err.
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

// bounded returns the error beyond after it has returned left bytes, because its reader would keep more data in memory.
// The reader reads ahead at most by its buffer.
type bounded struct {
	from   io.Reader
	left   int
	beyond error
}

// Read reads a part of the input.
func (r *bounded) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, r.beyond
	}
	n, err := r.from.Read(b)
	r.left -= n
	return n, err
}

const (
	spoolMemory = 1 << 20 // maximum part of a body that is kept in memory, in bytes
	spoolBodies = 5       // maximum number of bodies at once; additional bodies wait
	spoolEach   = 2       // maximum number of bodies of one operator token at once
)

// spool stores the body of a long batch until the body is complete. Otherwise a transaction would be open for as long as
// the sender takes; it would hold back the vacuum of the ledger, and every claim would have to read the dead rows. A long
// body is in an unnamed file, so a crash leaves no file behind.
type spool struct {
	dir   string // empty means the system's directory for temporary files
	turns *fair.Shares
}

// keep reads the complete body. The caller may read the result until it calls free.
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

// room marks write errors of the disk, to distinguish them from read errors of the body.
type room struct{ file *os.File }

// Write writes to the file. An error becomes a problem with the code no_room.
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
