package simulator

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
// connection was read. A device that leaves waits for the goodbye, so a device
// that has reported a result is no longer counted.
type External struct {
	listener net.Listener
	wait     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[net.Conn]struct{}
	capacity int
	changed  time.Time // when stats.Inside last changed
	stats    ExternalStats
	inside   map[*visit]*lease // nil: of a stranger
	tokens   map[int]int64     // slot -> highest token seen
	holders  map[int]*visit    // slot -> its visit
	leases   *leases           // nil: all are strangers
	suspects suspicions
	onFull   func() int // nil = the capacity stands
	turnover turnover
}

// ExternalStats is one consistent reading of External: what it counted. Breaches
// are what is left of it when devices that left late are taken away.
type ExternalStats struct {
	Inside            int
	HighWater         int           // most ever inside at once, late ones included
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
		conns: map[net.Conn]struct{}{}, inside: map[*visit]*lease{}, tokens: map[int]int64{}, holders: map[int]*visit{}, turnover: newTurnover(),
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

// follow sets where the leases of devices are found. Set it before they arrive.
func (e *External) follow(l *leases) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leases = l
}

// breaches are what no late device explains, if the server keeps a slot for
// margin after the lease that it told its device. Ask when devices have left.
func (e *External) breaches(margin time.Duration) Breaches {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.suspects.breaches(margin)
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

// reconsider takes back an arrival that was one too many only because the
// capacity had been raised a moment before. The answer may take a while, so
// the arrival counts first.
func (e *External) reconsider(crowd *suspicion, inside int) {
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
	crowd.cleared = true
	e.stats.OverLimitInstants--
	e.capacity = max(e.capacity, now)
}

// arrive counts a device inside. If that is too many it returns the suspicion,
// and how many are inside.
func (e *External) arrive(v *visit) (crowd *suspicion, inside int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	var mine *lease
	if e.leases != nil {
		mine = e.leases.of(v.token)
	}
	e.inside[v] = mine
	e.stats.Arrivals++
	e.stats.Inside = len(e.inside)
	e.stats.HighWater = max(e.stats.HighWater, e.stats.Inside)
	if v.token < e.tokens[v.slot] {
		e.stats.StaleTokens++
		e.suspect(stale, 0, mine)
	}
	if holder := e.holders[v.slot]; holder != nil && holder.token != v.token {
		e.stats.SharedSlots++
		e.suspect(shared, 1, mine, e.inside[holder])
	}
	if e.stats.Inside > e.capacity {
		e.stats.OverLimitInstants++
		crowd = e.suspect(over, e.capacity, slices.Collect(maps.Values(e.inside))...)
	}
	e.tokens[v.slot] = max(e.tokens[v.slot], v.token)
	e.holders[v.slot] = v
	e.turnover.enter(v.slot, v.token, e.changed)
	return crowd, e.stats.Inside
}

// suspect notes that fewer of these leases may stand now. Callers hold mu.
func (e *External) suspect(kind breach, allowed int, concerned ...*lease) *suspicion {
	return e.suspects.add(&suspicion{kind: kind, at: e.changed, allowed: allowed, leases: concerned})
}

func (e *External) leave(v *visit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.elapse()
	delete(e.inside, v)
	e.stats.Inside = len(e.inside)
	if e.holders[v.slot] == v {
		delete(e.holders, v.slot)
		e.turnover.leave(v.slot, e.changed)
	}
}

// Gaps are the last times that a slot was left and entered again; of very
// many, the last ones.
func (e *External) Gaps() []Gap {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.turnover.gaps)
}

// edges are the times, summed over the slots, before their first visit and
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
