package mqtt

import (
	"bufio"
	"cmp"
	"net"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

const (
	readBuffer  = 32 << 10
	unsentBytes = 64 << 10 // of packets that wait to be written; beyond, the writer waits
	lastWrite   = disconnectWait * time.Millisecond
)

// buffered is a connection for a library that reads each packet in three pieces and
// writes each alone. It reads ahead, and what is written while a write is under way goes
// out with the next one, in order. An error of a write is told to the writes after it,
// and ends the connection.
type buffered struct {
	net.Conn // its writes end by themselves

	in      *bufio.Reader
	written chan struct{} // closed at the end of writing

	mu     sync.Mutex
	change *sync.Cond // of what follows
	unsent []byte
	closed bool
	err    error
}

func newBuffered(conn net.Conn) *buffered {
	b := &buffered{Conn: conn, in: bufio.NewReaderSize(conn, readBuffer), written: make(chan struct{})}
	b.change = sync.NewCond(&b.mu)
	rescue.Async(func() error {
		defer b.end()
		return b.write()
	})
	return b
}

// Read is for one reader.
func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// Write keeps a packet for the next write. It waits while too much is kept.
func (b *buffered) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.unsent) > unsentBytes && !b.closed {
		b.change.Wait()
	}
	if b.closed {
		return 0, cmp.Or(b.err, net.ErrClosed)
	}
	b.unsent = append(b.unsent, p...)
	b.change.Broadcast()
	return len(p), nil
}

// SetWriteDeadline does nothing: packets of several writers go out in one write, which
// has a deadline of its own.
func (b *buffered) SetWriteDeadline(time.Time) error { return nil }

// write ends with the connection, when all that was kept is out.
func (b *buffered) write() error {
	var packets []byte
	for {
		b.mu.Lock()
		for len(b.unsent) == 0 && !b.closed {
			b.change.Wait()
		}
		packets, b.unsent = b.unsent, packets[:0]
		b.change.Broadcast()
		b.mu.Unlock()
		if len(packets) == 0 {
			return nil
		}
		if _, err := b.Conn.Write(packets); err != nil {
			b.close(err)
			return err
		}
	}
}

// end is called however writing has ended.
func (b *buffered) end() {
	b.close(nil)
	_ = b.Conn.Close()
	close(b.written)
}

func (b *buffered) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.err = true, cmp.Or(b.err, err)
	b.change.Broadcast()
}

// Close writes what is kept, within a moment.
func (b *buffered) Close() error {
	b.close(nil)
	enough := time.NewTimer(lastWrite)
	defer enough.Stop()
	select {
	case <-b.written:
	case <-enough.C:
		_ = b.Conn.Close()
		<-b.written
	}
	return nil
}
