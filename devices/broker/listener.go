package broker

import (
	"context"
	"net"
	"sync"
	"time"
)

// listener bounds the number of connections, the time from accepting a connection to its CONNECT, and the time of each write. mochi holds a
// client's lock while it writes to the client. So without the bound on each write, a client that does not read would block every client
// that publishes to it.
type listener struct {
	net.Listener
	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

func newListener(inner net.Listener) *listener {
	return &listener{Listener: inner, conns: map[*conn]struct{}{}}
}

// Accept returns the next connection, with a deadline for its first packet. It closes connections above maxConnections.
func (l *listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: inner, listener: l, firstRead: make(chan struct{})}
		if l.add(c) {
			_ = c.SetReadDeadline(time.Now().Add(handshakeTimeout))
			return c, nil
		}
		_ = inner.Close()
	}
}

func (l *listener) add(connection *conn) (added bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) >= maxConnections {
		return false
	}
	l.conns[connection] = struct{}{}
	return true
}

// closeAll closes the listener and all connections, and waits until mochi has counted every connection or ctx ends. Without this wait, Stop
// could find no counted client although mochi still handles one.
func (l *listener) closeAll(ctx context.Context) {
	_ = l.Close()
	l.mu.Lock()
	l.closed = true
	open := make([]*conn, 0, len(l.conns))
	for c := range l.conns {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	for _, c := range open {
		select {
		case <-c.firstRead:
		case <-ctx.Done():
			return
		}
	}
}

type conn struct {
	net.Conn
	listener  *listener
	once      sync.Once
	firstRead chan struct{} // closed at the first Read: then mochi has counted the connection
}

// Read reads from the connection. The first call closes firstRead: mochi counts a connection before the first read, so the connection is
// now counted.
func (c *conn) Read(buffer []byte) (int, error) {
	c.once.Do(func() { close(c.firstRead) })
	return c.Conn.Read(buffer)
}

// SetDeadline sets only the read deadline, because mochi calls it to enforce the keepalive.
func (c *conn) SetDeadline(deadline time.Time) error { return c.SetReadDeadline(deadline) }

// Write sends packet. After an error it closes the connection, because mochi would continue to write to it.
func (c *conn) Write(packet []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := c.Conn.Write(packet)
	if err != nil {
		_ = c.Close()
	}
	return n, err
}

// Close closes the connection and removes it from the listener.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
