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
	pingInterval = time.Second
	pingWait     = 4 * time.Second // a ping waits for this time, twice: if the machine was suspended, the first wait may end at once
	pingTimeout  = 2*pingWait + time.Second
)

// ErrNoAnswer means that for some seconds the database answered no statement. The store sends none until it answers again.
var ErrNoAnswer = errors.New("the database does not answer")

// pinger protects callers from a server that accepts statements but never answers, because it hangs or its host vanished.
//
// It sends a ping once a second over a connection of its own. If no answer arrives in time, neither to the ping nor on any other
// connection, it closes all other connections. This ends the statements that wait on them. It allows no new connection until the server
// answers a ping.
type pinger struct {
	db         *sqlx.DB
	pingDialer *dialer // opens the connection of db
	mainDialer *dialer // opens all other connections
	stop       context.CancelFunc
	done       chan struct{}

	panicked atomic.Pointer[error] // the panic of a ping, which the next Warm returns as an error
}

// newPinger starts a pinger that sends its pings over db.
func newPinger(db *sqlx.DB, pingDialer, mainDialer *dialer) *pinger {
	ctx, stop := context.WithCancel(context.Background())
	p := &pinger{db: db, pingDialer: pingDialer, mainDialer: mainDialer, stop: stop, done: make(chan struct{})}
	rescue.PanicHandler(nil).Go("", func() { p.run(ctx) })
	return p
}

func (p *pinger) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := rescue.Call(func() error { p.ping(ctx); return nil }); err != nil {
				p.panicked.Store(&err)
			}
		}
	}
}

// ping sends one ping. An error of the server counts as an answer, because such a server does not keep callers waiting.
func (p *pinger) ping(ctx context.Context) {
	readsBefore := p.mainDialer.reads.Load()
	answered := rescue.Async(func() error { return p.db.PingContext(ctx) })
	late := true
	for n := 0; late && n < 2; n++ {
		select {
		case err := <-answered:
			if !isNetworkTimeout(err) {
				p.mainDialer.unblock()
				return
			}
			late = false
		case <-time.After(pingWait):
		case <-ctx.Done():
			return
		}
	}
	if p.mainDialer.reads.Load() == readsBefore {
		p.mainDialer.block()
	}
	if late && <-answered == nil {
		p.mainDialer.unblock()
	}
}

func isNetworkTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}

// takePanicError returns the last panic of a ping as an error, or nil. It returns each panic once.
func (p *pinger) takePanicError() error {
	if err := p.panicked.Swap(nil); err != nil {
		return fmt.Errorf("checking the database connection: %w", *err)
	}
	return nil
}

// shutDown stops the pings without waiting for an answer.
func (p *pinger) shutDown() {
	if p == nil {
		return
	}
	p.stop()
	p.pingDialer.block()
	<-p.done
	_ = p.db.Close() // its connection is closed already, so this does not wait
}

// connSet holds the open connections of a dialer.
type connSet struct {
	reads   atomic.Int64 // number of reads that received data, on any connection
	mu      sync.Mutex
	blocked bool // no connection may be opened
	conns   map[net.Conn]struct{}
}

// add records an open connection. It returns ErrNoAnswer while connections are blocked.
func (c *connSet) add(conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked {
		_ = conn.Close()
		return ErrNoAnswer
	}
	if c.conns == nil {
		c.conns = make(map[net.Conn]struct{})
	}
	c.conns[conn] = struct{}{}
	return nil
}

func (c *connSet) remove(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// checkAllowed returns ErrNoAnswer while connections are blocked.
func (c *connSet) checkAllowed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blocked {
		return ErrNoAnswer
	}
	return nil
}

// block closes all connections and refuses new ones until unblock is called.
func (c *connSet) block() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = true
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

func (c *connSet) unblock() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocked = false
}
