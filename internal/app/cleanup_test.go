package app

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

// TestClosingWhatTheOtherSideClosedIsNoFault checks a process whose idle connections were reset by a server: it
// still ends with status 0.
func TestClosingWhatTheOtherSideClosedIsNoFault(t *testing.T) {
	t.Parallel()
	disk := errors.New("disk full")
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"closed before", net.ErrClosed, nil},
		{"reset", &net.OpError{Op: "write", Err: syscall.ECONNRESET}, nil},
		{"reset, and written to before", fmt.Errorf("goodbye: %w", &net.OpError{Op: "write", Err: syscall.EPIPE}), nil},
		{"something else", disk, disk},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var all cleanup
			all.add(c.name, func() error { return c.err })
			if err := all.closeAll(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
