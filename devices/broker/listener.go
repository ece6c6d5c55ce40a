package broker

import (
	"context"
	"net"
	"sync"
	"time"
)

// listener bounds what a connection can cost before and after it is admitted:
// their number, the time to the CONNECT, and the time of a write. mochi holds a
// client's lock while it writes, so one that does not read would stall
// whoever publishes to it.
type listener struct {
	net.Listener
	mu     sync.Mutex
	open   map[*conn]struct{}
	closed bool
}

func bound(inner net.Listener) *listener {
	return &listener{Listener: inner, open: map[*conn]struct{}{}}
}

// Accept returns the next connection within the bounds.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner, listener: l, served: make(chan struct{})}
		if l.add(c) {
			_ = c.SetReadDeadline(time.Now().Add(handshakeTimeout))
			return c, nil
		}
		_ = inner.Close()
	}
}

func (l *listener) add(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.open) >= maxConnections {
		return false
	}
	l.open[c] = struct{}{}
	return true
}

// closeAll closes the listener and its connections, also those that mochi does
// not know yet, and waits until it knows them all: only then its count of
// clients can be waited for.
func (l *listener) closeAll(ctx context.Context) {
	_ = l.Close()
	l.mu.Lock()
	l.closed = true
	open := make([]*conn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	for _, c := range open {
		select {
		case <-c.served:
		case <-ctx.Done():
			return
		}
	}
}

type conn struct {
	net.Conn
	listener *listener
	once     sync.Once
	served   chan struct{} // closed with the first reading: mochi has counted it
}

// Read marks the connection as served.
func (c *conn) Read(b []byte) (int, error) {
	c.once.Do(func() { close(c.served) })
	return c.Conn.Read(b)
}

// SetDeadline is how mochi applies the keepalive, which is about reading.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Write ends the connection when the client does not read: mochi would go on.
func (c *conn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Close ends the connection, and forgets it.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
