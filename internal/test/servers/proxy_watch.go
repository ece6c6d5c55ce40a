package servers

import (
	"bytes"
	"sync"
)

// requests are watched on their way to the server.
type requests struct {
	mu    sync.Mutex
	watch func(b []byte)        // sees what clients send; nil: nobody
	each  func() func(b []byte) // makes another watch for each connection; nil: none
}

// OnRequest lets watch see every chunk from client to server before it is
// forwarded. It is called from several goroutines, and may call the methods of
// the proxy.
func (r *requests) OnRequest(watch func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = watch
}

// OnConnection is OnRequest with a watch for each connection from now on.
func (r *requests) OnConnection(watch func() func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.each = watch
}

func (r *requests) watchers() (watch func(b []byte), each func() func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watch, r.each
}

// replies are dropped or held on their way to the client.
type replies struct {
	mu      sync.Mutex
	drop    int           // still to be dropped
	dropped int           // so far
	flow    chan struct{} // closed while replies flow
	after   string        // holds the replies of a connection once its client sent this; empty: nothing does
	release chan struct{} // closed when they flow again
}

// DropReplies swallows the next n replies of the server, on whatever
// connection, and closes the connection of each: the request was executed,
// its reply is lost. A reply is what the server sends in one piece.
func (r *replies) DropReplies(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = n
}

// Dropped is how many replies were swallowed so far.
func (r *replies) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// HoldReplies keeps back what the server sends until ReleaseReplies.
func (r *replies) HoldReplies() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(r.flow) {
		r.flow = make(chan struct{})
	}
}

// HoldRepliesAfter keeps back what the server sends on each connection from when its
// client sends this text, until ReleaseReplies. Others go on.
func (r *replies) HoldRepliesAfter(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.after, r.release = text, make(chan struct{})
}

// ReleaseReplies ends HoldReplies and HoldRepliesAfter.
func (r *replies) ReleaseReplies() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.after != "" {
		r.after = ""
		close(r.release)
	}
	if !isClosed(r.flow) {
		close(r.flow)
	}
}

func (r *replies) holdAfter(l *link, sent []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.after != "" && bytes.Contains(sent, []byte(r.after)) {
		l.held = r.release
	}
}

func (r *replies) flowing(l *link) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.held != nil && isClosed(r.flow) {
		return l.held
	}
	return r.flow
}

func (r *replies) takeDrop() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drop == 0 {
		return false
	}
	r.drop--
	r.dropped++
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
