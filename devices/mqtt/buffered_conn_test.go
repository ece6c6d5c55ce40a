package mqtt

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// countingConn is a connection that counts its calls. Each write waits until the test allows it.
type countingConn struct {
	net.Conn
	allowWrite chan struct{} // one element for each allowed write
	writes     int
	reads      int
}

func (c *countingConn) Write(p []byte) (int, error) {
	<-c.allowWrite
	c.writes++
	return c.Conn.Write(p)
}

func (c *countingConn) Read(p []byte) (int, error) {
	c.reads++
	return c.Conn.Read(p)
}

// connPair returns both ends of a network connection.
func connPair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	if here, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if there, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		here.Close()
		there.Close()
	})
	return here, there
}

// TestPacketsShareCallsOfTheSystem checks that packets that wait to be sent share one system call and stay in
// order, and that Close first sends all of them.
func TestPacketsShareCallsOfTheSystem(t *testing.T) {
	t.Parallel()
	here, there := connPair(t)
	raw := &countingConn{Conn: here, allowWrite: make(chan struct{}, 3)}
	b := newBufferedConn(raw)
	var want []byte
	for i := range byte(100) {
		packet := bytes.Repeat([]byte{i}, 50)
		want = append(want, packet...)
		_, err := b.Write(packet)
		must.Succeed(t, err)
	}
	for range cap(raw.allowWrite) {
		raw.allowWrite <- struct{}{}
	}
	must.Succeed(t, b.Close())
	got, err := io.ReadAll(there)
	if err != nil || !bytes.Equal(got, want) || raw.writes > 2 {
		t.Errorf("%v, %d of %d bytes in %d writes, want at most 2", err, len(got), len(want), raw.writes)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestPacketsAreReadAhead(t *testing.T) {
	t.Parallel()
	here, there := connPair(t)
	raw := &countingConn{Conn: here}
	b := newBufferedConn(raw)
	defer b.Close()
	_, err := there.Write(make([]byte, 1000))
	must.Succeed(t, err)
	for range 1000 {
		_, err := b.Read(make([]byte, 1))
		must.Succeed(t, err)
	}
	if raw.reads > 3 {
		t.Errorf("%d reads for 1000 bytes that came in one write", raw.reads)
	}
}

// TestABrokerThatReadsNothingBoundsWhatIsKept checks a broker that reads nothing: the buffer of unsent packets
// stays bounded, writers wait and get the error of the write, and Close does not wait long.
func TestABrokerThatReadsNothingBoundsWhatIsKept(t *testing.T) {
	t.Parallel()
	here, _ := connPair(t)
	b := newBufferedConn(deadlineConn{here, 200 * time.Millisecond})
	var err error
	for range 10_000 {
		if _, err = b.Write(make([]byte, 32<<10)); err != nil {
			break
		}
		if kept := cap(b.unsentData()); kept > 4*maxUnsentBytes {
			t.Fatalf("%d bytes are kept", kept)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the deadline of the write", err)
	}
	here, _ = connPair(t)
	b = newBufferedConn(deadlineConn{here, time.Hour})
	full := make(chan struct{})
	go func() {
		defer close(full)
		for err := error(nil); err == nil; {
			_, err = b.Write(make([]byte, 32<<10))
		}
	}()
	for len(b.unsentData()) <= maxUnsentBytes {
		<-time.After(time.Millisecond)
	}
	b.Close() // it does not wait for the deadline, which is an hour
	<-full
}

func (b *bufferedConn) unsentData() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsent
}
