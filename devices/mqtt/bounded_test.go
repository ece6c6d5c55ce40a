package mqtt

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestWriteEndsWhenNobodyReads checks a broker that does not read although its machine still answers. A write to this broker must end with
// an error.
func TestWriteEndsWhenNobodyReads(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	must.Succeed(t, err)
	defer raw.Close()
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := (deadlineConn{raw, 50 * time.Millisecond}).Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("still writing")
	}
}
