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
	pulseWait  = 4 * time.Second // twice: on a machine that stood still the first may be over at once
	pulseLimit = 2*pulseWait + time.Second
)

// ErrSilent: the database took a statement of no weight, and for some seconds answered
// neither that nor any other. It is not asked until it answers again.
var ErrSilent = errors.New("the database does not answer")

// pulse keeps callers from waiting, one after another, for a server that takes
// their statements and never answers: it hangs, or its host vanished. Once a
// second a connection of its own, on which nothing else waits, is asked for a
// sign of life. Without one in time, there or on any other, all others are closed,
// which ends what waits on them, and none is opened until there is one.
type pulse struct {
	db   *sqlx.DB
	own  *dialer // of db
	all  *dialer // of everybody else
	stop context.CancelFunc
	done chan struct{}

	panicked atomic.Pointer[error] // what Warm has to tell
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

// beat asks for a sign of life. That the server refuses is one, too: callers hear it
// as soon.
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

// timedOut: nobody was there to refuse.
func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// trouble is what a beat panicked with, once.
func (p *pulse) trouble() error {
	if err := p.panicked.Swap(nil); err != nil {
		return fmt.Errorf("asking for a sign of life: %w", *err)
	}
	return nil
}

// leave ends it, and waits for no answer. A nil p has ended.
func (p *pulse) leave() {
	if p == nil {
		return
	}
	p.stop()
	p.own.shut()
	<-p.done
	_ = p.db.Close() // without its connection, which is closed already
}

// connections are those that a dialer opened and nobody has closed.
type connections struct {
	heard  atomic.Int64 // counts what came in on any
	mu     sync.Mutex
	silent bool // none is opened
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

// refused is ErrSilent while the server is.
func (c *connections) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return ErrSilent
	}
	return nil
}

// shut closes all, and refuses new ones until open.
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
