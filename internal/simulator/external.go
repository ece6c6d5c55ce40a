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

// NewExternal listens on addr ("" means a free loopback port) and starts counting the devices that are connected. ctx limits only the
// start: call Close to stop. capacity is the maximum number of devices at once and must be positive. leases holds the leases of the
// devices. If leases is nil, no lease excuses a late device. onFull is called after an arrival that exceeds the capacity, and returns the
// current capacity, in case it was raised. If onFull is nil, the capacity does not change.
func NewExternal(ctx context.Context, addr string, capacity int, leases *leases, onFull func() int) (*External, error) {
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
	e := &External{listener: l, conns: map[net.Conn]struct{}{}, visitCounter: newVisitCounter(capacity, leases, onFull)}
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
		if !e.track(c) {
			_ = c.Close()
			return
		}
		e.wait.Go(func() { e.serve(c) })
	}
}

// track records an open connection, so that Close closes it. It returns false after Close.
func (e *External) track(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.conns[conn] = struct{}{}
	return true
}

// serve handles the connection of one visit: it reads the hello line, writes "in", reads until the end of input, and writes "bye".
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
