package api

import (
	"bytes"
	"cmp"
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

const (
	smallBody      = 64 << 10 // in bytes
	maxLargeBodies = 2        // large bodies that are read at once, at most one of each operator token; additional requests wait
)

// limitLargeBodies limits how many bodies of more than smallBody bytes, or of unknown length, are read at once. Additional
// requests wait. A body of 1 MiB, the maximum, takes 50 MiB of memory if it is a list of empty objects.
func (r *routes) limitLargeBodies(ctx huma.Context, next func(huma.Context)) error {
	if request, _ := humago.Unwrap(ctx); request.ContentLength < 0 || request.ContentLength > smallBody {
		return runWhenFree(r.largeTurns, ctx, next)
	}
	next(ctx)
	return nil
}

// BodyLimits are the limits for a long body. A zero field means the value of DefaultBodyLimits.
type BodyLimits struct {
	MaxStreamBytes int64         // maximum bytes of a batch in CSV or NDJSON
	MaxTasks       int           // maximum number of tasks in one batch
	MaxPause       time.Duration // maximum time in which a client may send nothing
}

// DefaultBodyLimits returns the limits that docs/protocol.md promises. The setting spool_dir, package doctor (minSpoolBytes) and
// deploy/kubernetes depend on MaxStreamBytes.
func DefaultBodyLimits() BodyLimits {
	return BodyLimits{MaxStreamBytes: 2 << 30, MaxTasks: 1_000_000, MaxPause: 30 * time.Second}
}

func (l BodyLimits) withDefaults() BodyLimits {
	d := DefaultBodyLimits()
	return BodyLimits{cmp.Or(l.MaxStreamBytes, d.MaxStreamBytes), cmp.Or(l.MaxTasks, d.MaxTasks), cmp.Or(l.MaxPause, d.MaxPause)}
}

// longBodyReader reads a long body of limited size. Its time limit applies to each pause of the sender, not to the whole body.
type longBodyReader struct {
	from        io.Reader
	setDeadline func(time.Time)
	pause       time.Duration
	limit       int64 // maximum size of the body, in bytes
	left        int64 // limit minus the bytes that were read
	readErr     error // error of reading the body, which a parser may hide
}

// newBodyReader returns a reader of the request's body that reads at most limit bytes.
func (l BodyLimits) newBodyReader(ctx huma.Context, limit int64) *longBodyReader {
	_, w := humago.Unwrap(ctx)
	connection := http.NewResponseController(w)
	return &longBodyReader{from: ctx.BodyReader(), pause: l.MaxPause, limit: limit, left: limit, setDeadline: func(t time.Time) {
		_ = connection.SetReadDeadline(t) // the ResponseWriter of a test has no deadlines
		_ = connection.SetWriteDeadline(time.Time{})
	}}
}

// Read reads the next bytes of the body into buffer. Before each read it renews the read deadline.
func (r *longBodyReader) Read(buffer []byte) (int, error) {
	r.setDeadline(time.Now().Add(r.pause))
	n, err := r.from.Read(buffer)
	if r.left -= int64(n); r.left < 0 {
		r.readErr = &http.MaxBytesError{Limit: r.limit}
		return 0, r.readErr
	}
	if errors.Is(err, io.EOF) {
		r.setDeadline(time.Time{}) // the body is complete: no read deadline while the ledger works
	} else if err != nil {
		r.readErr = err
	}
	return n, err
}

// requestError returns the error for a request whose body was read with r and parsed. parseErr is the error of the parser. If parseErr is
// nil, requestError returns nil. If the body could not be read, it returns the read error instead of parseErr.
func (r *longBodyReader) requestError(parseErr error) error {
	var large *http.MaxBytesError
	switch {
	case parseErr == nil || r.readErr == nil:
		return parseErr
	case errors.As(r.readErr, &large):
		return r.readErr
	}
	return newProblem(http.StatusRequestTimeout, codeBodyIncomplete, "body: incomplete").withCause(r.readErr)
}

// limitedReader returns at most left bytes, and then limitErr. It limits the memory of a parser, which keeps the value that it reads. The
// owner of the parser resets the field left before each value. A parser that reads ahead can exceed the limit by at most the size of its
// buffer.
type limitedReader struct {
	from     io.Reader
	left     int
	limitErr error
}

// Read reads the next bytes of the input into buffer.
func (r *limitedReader) Read(buffer []byte) (int, error) {
	if r.left <= 0 {
		return 0, r.limitErr
	}
	n, err := r.from.Read(buffer)
	r.left -= n
	return n, err
}

const (
	spoolMemory        = 1 << 20 // maximum part of a body that is kept in memory, in bytes
	maxSpooled         = 5       // maximum number of bodies at once; additional bodies wait
	maxSpooledPerToken = 2       // maximum number of bodies of one operator token at once
)

// spool stores the body of a long batch until the body is complete, before a transaction begins. A transaction that began earlier would be
// open for as long as the sender takes. It would hold back the vacuum of the ledger, and every claim would have to read the dead rows. A
// long body is in an unnamed file, so a crash leaves no file behind.
type spool struct {
	dir   string // empty means the system's directory for temporary files
	turns *fair.Shares
}

// storeBody reads the complete body and returns a reader of the stored bytes. The caller may use stored until
// it calls release. If body cannot be read to its end, the caller gets the reason from
// longBodyReader.requestError(err).
func (s *spool) storeBody(ctx context.Context, body io.Reader) (stored io.ReadSeeker, release func(), err error) {
	leave, err := startWhenFree(ctx, s.turns)
	if err != nil {
		return nil, nil, fmt.Errorf("waiting to read a body: %w", err)
	}
	start := new(bytes.Buffer)
	_, err = io.CopyN(start, body, spoolMemory)
	if errors.Is(err, io.EOF) {
		return bytes.NewReader(start.Bytes()), leave, nil
	}
	var file *os.File
	if err == nil {
		file, err = s.createUnnamedFile(io.MultiReader(start, body))
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return file, func() { _ = file.Close(); leave() }, nil
}

func (s *spool) createUnnamedFile(body io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(s.dir, "dispatcher-batch-*")
	if err != nil {
		return nil, diskFullProblem(err)
	}
	if err = os.Remove(file.Name()); err == nil {
		_, err = io.Copy(file, body)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(diskFullProblem(err), file.Close())
	}
	return file, nil
}

func diskFullProblem(err error) error {
	return newProblem(http.StatusInsufficientStorage, codeNoRoom, "body: no space left to buffer it").withCause(err)
}
