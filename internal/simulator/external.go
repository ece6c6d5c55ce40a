package simulator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// External simulates the external system, which breaks when more devices than its capacity use it at once. It is a TCP
// listener to which a device holds a connection open while it works. It limits nothing: it counts the devices and
// records violations.
//
// A device counts as inside from the time at which External has read its hello line until External has read the end of
// its connection. A leaving device waits for the goodbye line before it reports a result, so a device that has reported
// its result is no longer counted.
type External struct {
	*visitCounter

	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// NewExternal listens on addr ("" means a free loopback port) and starts counting the connected devices. ctx limits only
// the start: call Close to stop. capacity is the maximum number of devices at the same time and must be positive. leases
// contains the leases of the devices. If leases is nil, a device that stays after its lease counts as a violation. After
// an arrival that exceeds the capacity, readCapacity is called and returns the current capacity of the pool, because an
// operator may have raised it. If readCapacity is nil, the capacity does not change.
func NewExternal(ctx context.Context, addr string, capacity int, leases *leases, readCapacity func() int) (*External, error) {
	if capacity < 1 {
		return nil, fmt.Errorf("external system: capacity %d, want at least 1", capacity)
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("external system: %w", err)
	}
	e := &External{listener: l, conns: map[net.Conn]struct{}{}, visitCounter: newVisitCounter(capacity, leases, readCapacity)}
	e.wait.Go(e.accept)
	return e, nil
}

// Addr returns the address for devices.
func (e *External) Addr() string { return e.listener.Addr().String() }

// Close stops listening and closes all connections.
func (e *External) Close() error {
	e.mu.Lock()
	e.closed = true
	for c := range e.conns {
		_ = c.Close()
	}
	e.mu.Unlock()
	err := e.listener.Close()
	e.wait.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (e *External) accept() {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of file descriptors: wait until one is free
			continue
		}
		if !e.trackConnection(c) {
			_ = c.Close()
			return
		}
		e.wait.Go(func() { e.serve(c) })
	}
}

// trackConnection records an open connection, so that Close closes the connection. It returns false if Close was already called.
func (e *External) trackConnection(conn net.Conn) (tracked bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.conns[conn] = struct{}{}
	return true
}

// serve handles the connection of one visit. It reads the hello line, writes "in", reads until the end of the input, and
// writes "bye".
func (e *External) serve(conn net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, conn)
		e.mu.Unlock()
		_ = conn.Close()
	}()
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	v := &visit{}
	if _, err := fmt.Sscanf(line, helloFormat, &v.task, &v.token, &v.slot, &v.device); err != nil {
		return
	}
	if overSuspicion, inside := e.countArrival(v); overSuspicion != nil {
		e.clearIfCapacityRaised(overSuspicion, inside)
	}
	if _, err = io.WriteString(conn, greeting); err == nil {
		_, _ = io.Copy(io.Discard, in)
	}
	e.countExit(v)
	_, _ = io.WriteString(conn, goodbye)
}
