package servers

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a TCP proxy on the loopback that a test uses to break a network:
// to cut it, to lose replies, or to hold them back.
type Proxy struct {
	Addr string // host:port to connect to

	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	target string
	links  map[*link]struct{}
	cut    bool
	delay  time.Duration // each way

	requests
	replies
}

// NewProxy starts a proxy to target; it ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), listener: l, target: target, links: map[*link]struct{}{}, replies: replies{flow: make(chan struct{})}}
	close(p.flow)
	p.running.Go(p.accept)
	tb.Cleanup(func() {
		_ = l.Close()
		p.Cut()
		p.running.Wait()
	})
	return p
}

// Cut closes all connections and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.closeLinks()
}

// Point leads to another server from now on, and closes the connections to
// the one before.
func (p *Proxy) Point(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
	p.closeLinks()
}

func (p *Proxy) closeLinks() {
	for l := range p.links {
		l.close()
	}
}

// Heal ends Cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Delay makes the server far away: what is sent from now on, in either direction, on
// connections that are open too, arrives so much later, in order. Connecting takes no longer.
func (p *Proxy) Delay(oneWay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = oneWay
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	target := p.leadsTo()
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server, delay: p.delayNow, closed: make(chan struct{})}
	defer p.remove(l)
	if !p.add(l, target) {
		return
	}
	var up sync.WaitGroup
	up.Go(func() { p.forwardRequests(l) })
	p.forwardReplies(l)
	up.Wait()
}

// leadsTo returns the server that a new connection is made to.
func (p *Proxy) leadsTo() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// delayNow returns the delay of each direction.
func (p *Proxy) delayNow() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// add registers a connection, unless the proxy is cut or points elsewhere by now.
func (p *Proxy) add(l *link, target string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[l] = struct{}{}
	return !p.cut && p.target == target
}

func (p *Proxy) remove(l *link) {
	l.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) forwardRequests(l *link) {
	defer l.close()
	mine := func([]byte) {}
	if _, each := p.watchers(); each != nil {
		mine = each()
	}
	copyChunks(l.towards(l.server), l.client, func(b []byte) bool {
		p.holdAfter(l, b)
		mine(b)
		if watch, _ := p.watchers(); watch != nil {
			watch(b)
		}
		return true
	})
}

func (p *Proxy) forwardReplies(l *link) {
	defer l.close()
	copyChunks(l.towards(l.client), l.server, func([]byte) bool {
		select {
		case <-p.flowing(l):
			return !p.takeDrop()
		case <-l.closed:
			return false
		}
	})
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	delay          func() time.Duration
	once           sync.Once
	closed         chan struct{}
	held           <-chan struct{} // closed when its replies flow again; nil: they flow
}

// towards returns a writer to one end, which delivers after the delay of the link.
func (l *link) towards(end net.Conn) io.Writer {
	w := &delayed{link: l, end: end, chunks: make(chan chunk, 1024)}
	go w.carry()
	return w
}

// delayed is one direction of a link that takes time: as many chunks as are
// sent meanwhile are on their way at once.
type delayed struct {
	link   *link
	end    net.Conn
	chunks chan chunk

	underway atomic.Int32 // chunks that are not delivered yet
}

type chunk struct {
	due   time.Time
	bytes []byte
}

// Write delivers a chunk at once if there is no delay and no earlier chunk is under way.
// Otherwise it queues the chunk.
func (d *delayed) Write(b []byte) (int, error) {
	delay := d.link.delay()
	if delay == 0 && d.underway.Load() == 0 {
		return d.end.Write(b)
	}
	d.underway.Add(1)
	select {
	case d.chunks <- chunk{time.Now().Add(delay), bytes.Clone(b)}:
		return len(b), nil
	case <-d.link.closed:
		return 0, net.ErrClosed
	}
}

// carry delivers until the link is closed.
func (d *delayed) carry() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var c chunk
		select {
		case c = <-d.chunks:
		case <-d.link.closed:
			return
		}
		timer.Reset(time.Until(c.due))
		select {
		case <-timer.C:
		case <-d.link.closed:
			return
		}
		if _, err := d.end.Write(c.bytes); err != nil {
			d.link.close()
			return
		}
		d.underway.Add(-1)
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// copyChunks copies until an end or error, or until pass says no.
func copyChunks(to io.Writer, from io.Reader, pass func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !pass(buf[:n]) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
