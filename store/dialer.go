package store

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// answerSlack is the time for which the store waits for an answer after the statement timeout. Then the answer counts as lost.
const answerSlack = 5 * time.Second

// dialer opens connections whose reads and writes fail after ioTimeout. Without ioTimeout, the driver would wait about 15 minutes for a server
// that hangs or vanished, even after the context has ended. A few such statements would occupy all connections.
type dialer struct {
	net.Dialer
	connSet
	ioTimeout time.Duration // maximum time of one read or write; 0 means no limit
}

// DialContext opens a connection to address for the Postgres driver.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := d.checkAllowed(); err != nil {
		return nil, err
	}
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := d.add(conn); err != nil {
		return nil, err
	}
	return &limitedConn{Conn: conn, ioTimeout: d.ioTimeout, openConns: &d.connSet}, nil
}

// DialTimeout opens a connection to address within timeout. The driver calls only DialContext, but its interface also requires DialTimeout.
func (d *dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// limitedConn is a connection whose reads and writes fail after ioTimeout. The driver does not read from an idle connection.
type limitedConn struct {
	net.Conn
	ioTimeout      time.Duration // 0 means no limit
	openConns      *connSet
	driverDeadline atomic.Pointer[time.Time] // the deadline that the driver sets for the handshake; nil or zero means no deadline
}

// Close closes the connection and removes it from the list of the dialer.
func (c *limitedConn) Close() error {
	c.openConns.remove(c.Conn)
	return c.Conn.Close()
}

// SetDeadline sets the driver's own deadline for reads and writes. The earlier of this deadline and the end of ioTimeout applies.
func (c *limitedConn) SetDeadline(deadline time.Time) error {
	c.driverDeadline.Store(&deadline)
	return c.Conn.SetDeadline(deadline)
}

// deadline returns the time at which the next read or write must end: after ioTimeout, or at an earlier driverDeadline. A result of zero means
// no limit.
func (c *limitedConn) deadline() time.Time {
	var end time.Time
	if c.ioTimeout > 0 {
		end = time.Now().Add(c.ioTimeout) //nolint:forbidigo // the network takes deadlines by this clock
	}
	if until := c.driverDeadline.Load(); until != nil && !until.IsZero() && (end.IsZero() || until.Before(end)) {
		return *until
	}
	return end
}

// Read reads into buffer, and fails if no byte arrives before the deadline.
func (c *limitedConn) Read(buffer []byte) (int, error) {
	if err := c.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(buffer)
	if n > 0 {
		c.openConns.reads.Add(1)
	}
	return n, err
}

// Write sends data, and fails if that takes longer than the deadline allows.
func (c *limitedConn) Write(data []byte) (int, error) {
	if err := c.SetWriteDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Write(data)
}

// answerTimeout returns how long a connection waits for an answer if the server has this statement_timeout. A result of 0 means no limit.
func answerTimeout(statementTimeout string) time.Duration {
	text := strings.TrimSpace(statementTimeout)
	number := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
	unit, known := map[string]time.Duration{
		"": time.Millisecond, "ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
	}[strings.TrimSpace(text[len(number):])]
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n <= 0 || !known {
		return 0
	}
	return time.Duration(n)*unit + answerSlack
}
