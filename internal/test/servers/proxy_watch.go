package servers

import (
	"bytes"
	"sync"
)

// requests calls functions of the test with the data that clients send through the proxy to the server.
type requests struct {
	mu       sync.Mutex
	watch    func(b []byte)        // called with the data from clients; nil means not called
	newWatch func() func(b []byte) // creates another watch function for each connection; nil means none
}

// OnRequest sets a function that the proxy calls with every chunk of data from a client before it forwards the
// chunk. The function is called from several goroutines, and may call the methods of the proxy.
func (r *requests) OnRequest(watch func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watch = watch
}

// OnConnection sets a function that the proxy calls once for each new connection. The function that newWatch returns then
// gets every chunk of data from the client of this connection, as the function of OnRequest does.
func (r *requests) OnConnection(newWatch func() func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newWatch = newWatch
}

func (r *requests) watchers() (watch func(b []byte), newWatch func() func(b []byte)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watch, r.newWatch
}

// replies drops or holds the data that the server sends through the proxy to clients.
type replies struct {
	mu            sync.Mutex
	drop          int           // number of replies still to drop
	dropped       int           // number of replies dropped so far
	flow          chan struct{} // closed while replies flow
	holdAfterText string        // holds the replies of a connection once its client has sent this text; "" means none
	release       chan struct{} // closed when these replies flow again
}

// DropReplies drops the next n replies of the server, on any connection, and closes each connection on which it
// drops one: so the request was executed and its reply is lost. A reply is the data that the server sends in one
// chunk.
func (r *replies) DropReplies(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop = n
}

// Dropped returns how many replies were dropped so far.
func (r *replies) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped
}

// HoldReplies holds back the data that the server sends, on all connections, until ReleaseReplies is called.
func (r *replies) HoldReplies() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(r.flow) {
		r.flow = make(chan struct{})
	}
}

// HoldRepliesAfter holds back the replies on a connection from the moment at which its client sends this text,
// until ReleaseReplies is called. Other connections are not affected.
func (r *replies) HoldRepliesAfter(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holdAfterText, r.release = text, make(chan struct{})
}

// ReleaseReplies ends the effect of HoldReplies and HoldRepliesAfter: the data that was held back is sent.
func (r *replies) ReleaseReplies() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holdAfterText != "" {
		r.holdAfterText = ""
		close(r.release)
	}
	if !isClosed(r.flow) {
		close(r.flow)
	}
}

func (r *replies) holdIfSent(l *link, sent []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holdAfterText != "" && bytes.Contains(sent, []byte(r.holdAfterText)) {
		l.held = r.release
	}
}

func (r *replies) channelClosedWhenRepliesFlow(l *link) (flows <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.held != nil && isClosed(r.flow) {
		return l.held
	}
	return r.flow
}

func (r *replies) takeDrop() (mustDrop bool) {
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
