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
	readBuffer  = 32 << 10                          // bytes
	unsentBytes = 64 << 10                          // bytes of packets that wait to be written; if there are more, Write waits
	lastWrite   = disconnectWait * time.Millisecond // the longest time for the last write in Close
)

// buffered is a connection that saves system calls for a library that reads each packet in
// three pieces and writes each packet alone. It reads ahead. Packets that are written while
// a write is in progress are sent together with the next write, in order. If a write fails,
// later calls of Write return its error, and the connection is closed.
type buffered struct {
	net.Conn // its Write must have a deadline

	in      *bufio.Reader
	written chan struct{} // closed when the writing goroutine ends

	mu     sync.Mutex
	change *sync.Cond // signals changes of the fields below
	unsent []byte     // packets for the next write
	closed bool
	err    error // the error of the write that failed
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

// Read is for one reading goroutine only.
func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// Write appends a packet to the next write. It blocks while more than unsentBytes are waiting.
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

// SetWriteDeadline does nothing: packets of several writers are sent in one write, and the
// connection below sets a deadline for each write.
func (b *buffered) SetWriteDeadline(time.Time) error { return nil }

// write sends the waiting packets until the connection is closed and no packet is left, or until a write fails.
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

// end runs after write has ended in any way, also by a panic. It closes the connection.
func (b *buffered) end() {
	b.close(nil)
	_ = b.Conn.Close()
	close(b.written)
}

// close makes Write refuse further packets. Unless a write failed, write still sends the waiting packets. b.err keeps the first
// error.
func (b *buffered) close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.err = true, cmp.Or(b.err, err)
	b.change.Broadcast()
}

// Close sends the waiting packets and closes the connection. After lastWrite it no longer waits for the packets.
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
