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

// Proxy is a TCP proxy on the loopback. With it, a test breaks the network in front of a server: it cuts
// connections, drops or holds back replies, and delays data. When one side ends its data, the proxy closes both
// connections, so data that is still delayed is lost.
type Proxy struct {
	Addr string // host:port to connect to

	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	target string
	links  map[*link]struct{}
	cut    bool
	delay  time.Duration // in each direction

	requests
	replies
}

// NewProxy starts a proxy in front of the server at target. The proxy ends with the test.
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

// Cut closes all connections and refuses new ones until EndCut.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.closeLinks()
}

// PointTo closes all connections and directs new connections to the server target.
func (p *Proxy) PointTo(target string) {
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

// EndCut allows connections again after Cut.
func (p *Proxy) EndCut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Delay simulates a distant server. Data that is sent from now on arrives in order and later by the time oneWay, in
// both directions and also on open connections. Connecting takes no longer than before.
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
	target := p.currentTarget()
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server, delay: p.currentDelay, closed: make(chan struct{})}
	defer p.removeLink(l)
	if !p.addLink(l, target) {
		return
	}
	var up sync.WaitGroup
	up.Go(func() { p.forwardRequests(l) })
	p.forwardReplies(l)
	up.Wait()
}

// currentTarget returns the server to which new connections go.
func (p *Proxy) currentTarget() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// currentDelay returns the delay of data in each direction.
func (p *Proxy) currentDelay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delay
}

// addLink registers a connection to target. It returns false if the proxy was cut, or was pointed to another server, in the
// meantime.
func (p *Proxy) addLink(added *link, target string) (isAdded bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.links[added] = struct{}{}
	return !p.cut && p.target == target
}

func (p *Proxy) removeLink(removed *link) {
	removed.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, removed)
}

func (p *Proxy) forwardRequests(l *link) {
	defer l.close()
	watchOwn := func([]byte) {}
	if _, each := p.watchers(); each != nil {
		watchOwn = each()
	}
	copyChunks(l.newDelayedWriter(l.server), l.client, func(b []byte) bool {
		p.holdIfSent(l, b)
		watchOwn(b)
		if watch, _ := p.watchers(); watch != nil {
			watch(b)
		}
		return true
	})
}

func (p *Proxy) forwardReplies(l *link) {
	defer l.close()
	copyChunks(l.newDelayedWriter(l.client), l.server, func([]byte) bool {
		select {
		case <-p.channelClosedWhenRepliesFlow(l):
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
	held           <-chan struct{} // closed when the replies of this connection flow again; nil if they are not held
}

// newDelayedWriter returns a writer to one end of the link. It delivers the data after the delay of the proxy.
func (l *link) newDelayedWriter(end net.Conn) io.Writer {
	w := &delayedWriter{link: l, end: end, chunks: make(chan chunk, 1024)}
	go w.deliverChunks()
	return w
}

// delayedWriter delivers the data of one direction of a link after the delay of the proxy. Several chunks can be on
// their way at the same time.
type delayedWriter struct {
	link   *link
	end    net.Conn
	chunks chan chunk

	undelivered atomic.Int32 // number of chunks that are not delivered yet
}

type chunk struct {
	deliverAt time.Time
	bytes     []byte
}

// Write delivers a chunk at once if there is no delay and no earlier chunk is on its way. Otherwise it queues the
// chunk.
func (d *delayedWriter) Write(b []byte) (int, error) {
	delay := d.link.delay()
	if delay == 0 && d.undelivered.Load() == 0 {
		return d.end.Write(b)
	}
	d.undelivered.Add(1)
	select {
	case d.chunks <- chunk{time.Now().Add(delay), bytes.Clone(b)}:
		return len(b), nil
	case <-d.link.closed:
		return 0, net.ErrClosed
	}
}

// deliverChunks delivers the queued chunks, each when its time has come, until the link is closed.
func (d *delayedWriter) deliverChunks() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var c chunk
		select {
		case c = <-d.chunks:
		case <-d.link.closed:
			return
		}
		timer.Reset(time.Until(c.deliverAt))
		select {
		case <-timer.C:
		case <-d.link.closed:
			return
		}
		if _, err := d.end.Write(c.bytes); err != nil {
			d.link.close()
			return
		}
		d.undelivered.Add(-1)
	}
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.closed)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// copyChunks copies data from `from` to `to` in chunks. It stops at the end of the input, at an
// error, or when mayForward returns false for a chunk.
func copyChunks(to io.Writer, from io.Reader, mayForward func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !mayForward(buf[:n]) {
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
