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
	readBuffer       = 32 << 10                            // bytes
	maxUnsentBytes   = 64 << 10                            // bytes of packets that wait to be written; if there are more, Write waits
	lastWriteTimeout = disconnectWaitMS * time.Millisecond // the longest time for the last write in Close
)

// bufferedConn saves system calls for a library (paho) that reads each packet in three pieces and writes each packet alone. bufferedConn reads
// ahead. While a write to the network is in progress, it collects packets and sends them together in the next write. If a write fails, it closes
// the connection.
type bufferedConn struct {
	net.Conn // its Write must have a deadline

	in         *bufio.Reader
	writerDone chan struct{} // closed when the writing goroutine ends

	mu     sync.Mutex
	change *sync.Cond // signals changes of the fields below
	unsent []byte     // packets for the next write
	closed bool
	err    error // the error of the write that failed
}

func newBufferedConn(conn net.Conn) *bufferedConn {
	b := &bufferedConn{Conn: conn, in: bufio.NewReaderSize(conn, readBuffer), writerDone: make(chan struct{})}
	b.change = sync.NewCond(&b.mu)
	rescue.Async(func() error {
		defer b.closeAfterLastWrite()
		return b.sendUnsent()
	})
	return b
}

// Read reads into buffer from the connection. Only one goroutine may call it.
func (b *bufferedConn) Read(buffer []byte) (int, error) { return b.in.Read(buffer) }

// Write buffers packet for the next write. It blocks while more than maxUnsentBytes are buffered.
func (b *bufferedConn) Write(packet []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.unsent) > maxUnsentBytes && !b.closed {
		b.change.Wait()
	}
	if b.closed {
		return 0, cmp.Or(b.err, net.ErrClosed)
	}
	b.unsent = append(b.unsent, packet...)
	b.change.Broadcast()
	return len(packet), nil
}

// SetWriteDeadline does nothing, because the wrapped connection sets a deadline for each write.
func (b *bufferedConn) SetWriteDeadline(time.Time) error { return nil }

// sendUnsent sends the waiting packets until the connection is closed and none is left, or until a write fails.
func (b *bufferedConn) sendUnsent() error {
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
			b.refuseFurtherWrites(err)
			return err
		}
	}
}

// closeAfterLastWrite closes the connection after sendUnsent has returned or panicked.
func (b *bufferedConn) closeAfterLastWrite() {
	b.refuseFurtherWrites(nil)
	_ = b.Conn.Close()
	close(b.writerDone)
}

// refuseFurtherWrites makes Write refuse further packets with cause, or with net.ErrClosed if cause is nil. b.err keeps the first error.
func (b *bufferedConn) refuseFurtherWrites(cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed, b.err = true, cmp.Or(b.err, cause)
	b.change.Broadcast()
}

// Close sends the waiting packets, at most for lastWriteTimeout, and closes the connection.
func (b *bufferedConn) Close() error {
	b.refuseFurtherWrites(nil)
	deadline := time.NewTimer(lastWriteTimeout)
	defer deadline.Stop()
	select {
	case <-b.writerDone:
	case <-deadline.C:
		_ = b.Conn.Close()
		<-b.writerDone
	}
	return nil
}
