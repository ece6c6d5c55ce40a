package mqtt

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// counted is a connection that counts its calls. Each write waits until the test allows it.
type counted struct {
	net.Conn
	may    chan struct{} // one element for each allowed write
	writes int
	reads  int
}

func (c *counted) Write(p []byte) (int, error) {
	<-c.may
	c.writes++
	return c.Conn.Write(p)
}

func (c *counted) Read(p []byte) (int, error) {
	c.reads++
	return c.Conn.Read(p)
}

// pair returns both ends of a network connection.
func pair(t *testing.T) (here, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// TestPacketsShareCallsOfTheSystem checks that waiting packets are sent in one system call, in order, and that Close sends all
// packets.
func TestPacketsShareCallsOfTheSystem(t *testing.T) {
	t.Parallel()
	here, there := pair(t)
	raw := &counted{Conn: here, may: make(chan struct{}, 3)}
	b := newBuffered(raw)
	var want []byte
	for i := range byte(100) {
		packet := bytes.Repeat([]byte{i}, 50)
		want = append(want, packet...)
		if _, err := b.Write(packet); err != nil {
			t.Fatal(err)
		}
	}
	for range cap(raw.may) {
		raw.may <- struct{}{}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
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
	here, there := pair(t)
	raw := &counted{Conn: here}
	b := newBuffered(raw)
	defer b.Close()
	if _, err := there.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := b.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if raw.reads > 3 {
		t.Errorf("%d reads for 1000 bytes that came in one write", raw.reads)
	}
}

// TestABrokerThatReadsNothingBoundsWhatIsKept checks what happens if the broker reads nothing: the
// buffer stays bounded, writers wait and get the error of the write, and Close does not wait long.
func TestABrokerThatReadsNothingBoundsWhatIsKept(t *testing.T) {
	t.Parallel()
	here, _ := pair(t)
	b := newBuffered(bounded{here, 200 * time.Millisecond})
	var err error
	for range 10_000 {
		if _, err = b.Write(make([]byte, 32<<10)); err != nil {
			break
		}
		if kept := cap(b.kept()); kept > 4*unsentBytes {
			t.Fatalf("%d bytes are kept", kept)
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the deadline of the write", err)
	}
	here, _ = pair(t)
	b = newBuffered(bounded{here, time.Hour})
	full := make(chan struct{})
	go func() {
		defer close(full)
		for err := error(nil); err == nil; {
			_, err = b.Write(make([]byte, 32<<10))
		}
	}()
	for len(b.kept()) <= unsentBytes {
		<-time.After(time.Millisecond)
	}
	began := time.Now()
	b.Close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %s", took)
	}
	<-full
}

func (b *buffered) kept() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsent
}
