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

// External is the system that breaks when more than a number of devices use it
// at once: a TCP listener to which a device holds a connection open while it
// works. It enforces nothing; it counts and judges.
//
// A device is inside from when its hello was read until the end of its
// connection was read. A device that leaves waits for the goodbye, so a device
// that has reported a result is no longer counted.
type External struct {
	*judge

	listener net.Listener
	wait     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// NewExternal listens on addr ("" = a free loopback port) and starts judging.
// Close ends it, the context only its start. The capacity must be positive.
// leases are those of the devices; nil: all are strangers. onFull is asked
// about an arrival that was one too many: the capacity as of now, in case it was
// raised; nil: it stands.
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
	e := &External{listener: l, conns: map[net.Conn]struct{}{}, judge: newJudge(capacity, leases, onFull)}
	e.wait.Go(e.accept)
	return e, nil
}

// Addr is where devices connect to.
func (e *External) Addr() string { return e.listener.Addr().String() }

// Close stops listening and drops everybody inside.
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
			time.Sleep(10 * time.Millisecond) // out of file descriptors: wait for one
			continue
		}
		if !e.track(c) {
			_ = c.Close()
			return
		}
		e.wait.Go(func() { e.serve(c) })
	}
}

func (e *External) track(c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.conns[c] = struct{}{}
	return true
}

// serve is one visit: hello, "in", end of input, "bye".
func (e *External) serve(c net.Conn) {
	defer func() {
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		_ = c.Close()
	}()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	v := &visit{}
	if _, err := fmt.Sscanf(line, helloFormat, &v.task, &v.token, &v.slot, &v.device); err != nil {
		return
	}
	if crowd, inside := e.arrive(v); crowd != nil {
		e.reconsider(crowd, inside)
	}
	if _, err = io.WriteString(c, greeting); err == nil {
		_, _ = io.Copy(io.Discard, in)
	}
	e.leave(v)
	_, _ = io.WriteString(c, goodbye)
}
