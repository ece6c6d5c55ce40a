package simulator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// External is the system that breaks when more than a number of devices use it
// at once: a TCP listener to which a device holds a connection open while it
// works. It enforces nothing; it counts and judges.
//
// A device is inside from when its hello was read until the end of its
// connection was read. A device that leaves waits for the goodbye, so whoever
// has reported a result is no longer counted.
type External struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]struct{}
	capacity int
	changed  time.Time // when stats.Inside last changed
	stats    ExternalStats
	tokens   map[int]int64 // slot -> highest token seen
	holders  map[int]int64 // slot -> token inside
	onFull   func() int    // nil = the capacity stands
	turnover turnover
}

// ExternalStats is one consistent reading of External.
type ExternalStats struct {
	Inside            int
	HighWater         int           // most ever inside at once
	Arrivals          int64         // hellos read
	OverLimitInstants int64         // arrivals that made it more than the capacity
	OverLimit         time.Duration // time spent above the capacity
	StaleTokens       int64         // arrivals with a lower token than their slot has seen
	SharedSlots       int64         // arrivals at a slot somebody else was using
	InsideTime        time.Duration // device-time spent inside, summed
}

// NewExternal listens on addr ("" = a free loopback port) and starts judging.
// Close ends
// it, the context only its start. The capacity must be positive.
func NewExternal(ctx context.Context, addr string, capacity int) (*External, error) {
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
	e := &External{
		listener: l, capacity: capacity, changed: time.Now(),
		conns: map[net.Conn]struct{}{}, tokens: map[int]int64{}, holders: map[int]int64{}, turnover: newTurnover(),
	}
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

// Inside is how many devices are inside now.
func (e *External) Inside() int { return e.Stats().Inside }

// HighWater is the most that were ever inside at once.
func (e *External) HighWater() int { return e.Stats().HighWater }

// OverLimitInstants is how many arrivals exceeded the capacity.
func (e *External) OverLimitInstants() int64 { return e.Stats().OverLimitInstants }

// Capacity is the number above which an arrival is one too many.
func (e *External) Capacity() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.capacity
}

// SetCapacity changes what later arrivals are judged by.
func (e *External) SetCapacity(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	e.capacity = n
}

// OnFull sets what is asked about an arrival that was one too many: the
// capacity as of now, in case it was raised. Set it before devices arrive.
func (e *External) OnFull(ask func() int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onFull = ask
}

// Stats returns all counts as of one instant.
func (e *External) Stats() ExternalStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	return e.stats
}

func (e *External) accept() {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			if e.isClosed() {
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

func (e *External) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
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
	var v visit
	if _, err := fmt.Sscanf(line, helloFormat, &v.task, &v.token, &v.slot, &v.device); err != nil {
		return
	}
	if inside, over := e.arrive(v); over {
		e.reconsider(inside)
	}
	if _, err = io.WriteString(c, greeting); err == nil {
		_, _ = io.Copy(io.Discard, in)
	}
	e.leave(v)
	_, _ = io.WriteString(c, goodbye)
}

// reconsider takes back an arrival that was one too many only because the
// capacity had been raised a moment before. The answer may take a while, so
// the arrival counts first.
func (e *External) reconsider(inside int) {
	e.mu.Lock()
	ask := e.onFull
	e.mu.Unlock()
	if ask == nil {
		return
	}
	now := ask()
	e.mu.Lock()
	defer e.mu.Unlock()
	if now < inside {
		return
	}
	e.elapse()
	e.stats.OverLimitInstants--
	e.capacity = max(e.capacity, now)
}

// arrive counts a device inside, and returns how many are, and whether that
// is too many.
func (e *External) arrive(v visit) (inside int, over bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	e.stats.Arrivals++
	e.stats.Inside++
	e.stats.HighWater = max(e.stats.HighWater, e.stats.Inside)
	if e.stats.Inside > e.capacity {
		e.stats.OverLimitInstants++
	}
	if v.token < e.tokens[v.slot] {
		e.stats.StaleTokens++
	}
	e.tokens[v.slot] = max(e.tokens[v.slot], v.token)
	if holder, taken := e.holders[v.slot]; taken && holder != v.token {
		e.stats.SharedSlots++
	}
	e.holders[v.slot] = v.token
	e.turnover.enter(v.slot, v.token, e.changed)
	return e.stats.Inside, e.stats.Inside > e.capacity
}

func (e *External) leave(v visit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	e.stats.Inside--
	if e.holders[v.slot] == v.token {
		delete(e.holders, v.slot)
		e.turnover.leave(v.slot, e.changed)
	}
}

// Gaps are the last times that a place was left and entered again; of very
// many, the last ones.
func (e *External) Gaps() []Gap {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.turnover.gaps)
}

// edges are the times, summed over the places, before their first visit and
// after their last.
func (e *External) edges(from, to time.Time) (before, after time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.turnover.edges(e.capacity, from, to)
}

// elapse accounts for the time since the last change. Callers hold mu.
func (e *External) elapse() {
	now := time.Now()
	d := now.Sub(e.changed)
	e.changed = now
	e.stats.InsideTime += d * time.Duration(e.stats.Inside)
	if e.stats.Inside > e.capacity {
		e.stats.OverLimit += d
	}
}
