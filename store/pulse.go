package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

const (
	pulseEvery = time.Second
	pulseWait  = 4 * time.Second // waited for twice: after the machine was suspended the first wait may end at once
	pulseLimit = 2*pulseWait + time.Second
)

// ErrSilent means that the database accepted a trivial statement and for some seconds answered neither this statement nor any other. No
// statement is sent until it answers again.
var ErrSilent = errors.New("the database does not answer")

// pulse keeps callers from waiting, one after another, for a server that accepts statements but never answers, because it hangs or its host
// vanished. Once a second it sends a ping over a connection of its own, which nothing else uses. If no answer arrives in time, neither on
// this connection nor on any other, it closes all other connections, which ends the statements that wait on them. It allows no new
// connection until the server answers a ping.
type pulse struct {
	db   *sqlx.DB
	own  *dialer // opens the connection of db
	all  *dialer // opens all other connections
	stop context.CancelFunc
	done chan struct{}

	panicked atomic.Pointer[error] // a panic of a beat, which Warm returns
}

func newPulse(db *sqlx.DB, own, all *dialer) *pulse {
	ctx, stop := context.WithCancel(context.Background())
	p := &pulse{db: db, own: own, all: all, stop: stop, done: make(chan struct{})}
	rescue.Told(nil).Go("", func() { p.run(ctx) })
	return p
}

func (p *pulse) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(pulseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := rescue.Call(func() error { p.beat(ctx); return nil }); err != nil {
				p.panicked.Store(&err)
			}
		}
	}
}

// beat sends one ping and waits for the answer. An error from the server counts as an answer, because callers receive such an error just as
// quickly.
func (p *pulse) beat(ctx context.Context) {
	heard := p.all.heard.Load()
	answered := rescue.Async(func() error { return p.db.PingContext(ctx) })
	late := true
	for n := 0; late && n < 2; n++ {
		select {
		case err := <-answered:
			if !timedOut(err) {
				p.all.open()
				return
			}
			late = false
		case <-time.After(pulseWait):
		case <-ctx.Done():
			return
		}
	}
	if p.all.heard.Load() == heard {
		p.all.shut()
	}
	if late && <-answered == nil {
		p.all.open()
	}
}

// timedOut reports whether err is a network timeout, so that no server answered.
func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// trouble returns the panic of a beat as an error, once.
func (p *pulse) trouble() error {
	if err := p.panicked.Swap(nil); err != nil {
		return fmt.Errorf("asking for a sign of life: %w", *err)
	}
	return nil
}

// leave stops the pulse without waiting for an answer. On a nil p it does nothing.
func (p *pulse) leave() {
	if p == nil {
		return
	}
	p.stop()
	p.own.shut()
	<-p.done
	_ = p.db.Close() // its connection is closed already, so this does not wait
}

// connections holds the open connections of a dialer.
type connections struct {
	heard  atomic.Int64 // number of reads that received data, on any connection
	mu     sync.Mutex
	silent bool // no connection may be opened
	all    map[net.Conn]struct{}
}

func (c *connections) add(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		_ = conn.Close()
		return ErrSilent
	}
	if c.all == nil {
		c.all = make(map[net.Conn]struct{})
	}
	c.all[conn] = struct{}{}
	return nil
}

func (c *connections) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, conn)
}

// refused returns ErrSilent while no connection may be opened.
func (c *connections) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return ErrSilent
	}
	return nil
}

// shut closes all connections and refuses new ones until open is called.
func (c *connections) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = true
	for conn := range c.all {
		_ = conn.Close()
	}
	clear(c.all)
}

func (c *connections) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = false
}
