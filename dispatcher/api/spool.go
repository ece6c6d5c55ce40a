package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/fleetslots/dispatcher/internal/fair"
)

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
