package store

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// answerSlack is how much longer than a statement may take its answer is
// waited for.
const answerSlack = 5 * time.Second

// dialer opens connections that give up a server which says nothing, though it
// has not closed them: it hangs, or vanished. The driver would wait for as long as
// the kernel does, a quarter of an hour, also when the context has ended, and a
// few statements would keep all connections.
type dialer struct {
	net.Dialer
	connections
	limit time.Duration // of one reading or writing; 0 = none
}

// DialContext is what the driver calls.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if err := d.refused(); err != nil {
		return nil, err
	}
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := d.add(conn); err != nil {
		return nil, err
	}
	return &limitedConn{Conn: conn, limit: d.limit, of: &d.connections}, nil
}

// DialTimeout makes it the driver's Dialer, which prefers DialContext.
func (d *dialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.DialContext(ctx, network, address)
}

// limitedConn fails when a reading or writing takes longer than limit. Nobody
// reads while no statement is under way.
type limitedConn struct {
	net.Conn
	limit time.Duration // 0: none
	of    *connections
	until atomic.Pointer[time.Time] // set by the driver, for the handshake; nil, zero: none
}

// Close is told to the dialer.
func (c *limitedConn) Close() error {
	c.of.remove(c.Conn)
	return c.Conn.Close()
}

// SetDeadline is the driver's own limit; the earlier one holds.
func (c *limitedConn) SetDeadline(t time.Time) error {
	c.until.Store(&t)
	return c.Conn.SetDeadline(t)
}

func (c *limitedConn) deadline() time.Time {
	var end time.Time
	if c.limit > 0 {
		end = time.Now().Add(c.limit) //nolint:forbidigo // the network takes deadlines by this clock
	}
	if until := c.until.Load(); until != nil && !until.IsZero() && (end.IsZero() || until.Before(end)) {
		return *until
	}
	return end
}

// Read waits no longer than what is allowed.
func (c *limitedConn) Read(b []byte) (int, error) {
	if err := c.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.of.heard.Add(1)
	}
	return n, err
}

// Write waits no longer than what is allowed.
func (c *limitedConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// answerLimit is how long an answer is waited for, given the setting
// statement_timeout as Postgres takes it; 0: without limit, as its statements.
func answerLimit(setting string) time.Duration {
	text := strings.TrimSpace(setting)
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
