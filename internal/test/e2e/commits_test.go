package e2e

import (
	"bytes"
	"sync/atomic"
)

// commitWatch watches the data that a replica sends to Postgres, and detects the COMMIT that follows the claim of a
// grant.
type commitWatch struct {
	armed   atomic.Pointer[func()]
	claimed atomic.Bool
}

// arm makes the watch call strike once, just before the next COMMIT of a claim is forwarded to Postgres. The returned
// channel is closed after strike has returned.
func (w *commitWatch) arm(strike func()) <-chan struct{} {
	struck := make(chan struct{})
	do := func() {
		strike()
		close(struck)
	}
	w.claimed.Store(false)
	w.armed.Store(&do)
	return struck
}

func (w *commitWatch) inspect(chunk []byte) {
	if w.armed.Load() == nil {
		return
	}
	if bytes.Contains(chunk, []byte(`"slot":`)) { // the argument of a claim's statement
		w.claimed.Store(true)
	}
	if !w.claimed.Load() || !bytes.Contains(chunk, []byte("COMMIT")) {
		return
	}
	if do := w.armed.Swap(nil); do != nil {
		(*do)()
	}
}
