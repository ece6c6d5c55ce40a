package dispatcher

import (
	"math"
	"sync"
	"time"
)

// lineWaits learns how long devices wait in the lines of pools, as this replica
// sees it, by what the holds before them add up to. In a line that does not move
// by its order, since whoever is there when a place falls free may pass, waits
// cannot be known: only what was mostly right of late is foretold.
type lineWaits struct {
	mu      sync.Mutex
	waiting map[waiter]wait
	learned map[lesson]experience
}

// waiter is a device in the line of a pool.
type waiter struct{ pool, device string }

// wait is one that is under way.
type wait struct {
	since, until time.Time     // until when the device is to ask again
	after, ahead time.Duration // as of the first refusal
}

// lesson is what waits have in common: the pool, and that the holds ahead lie
// within a factor of two.
type lesson struct {
	pool   string
	octave int
}

// experience of waits that ended, of which the older count less and less.
type experience struct {
	waits int     // that were learned from
	scale float64 // mean logarithm of the wait over the holds ahead
	right float64 // share that was foretold within a factor of two
}

const (
	leastWaits = 10              // learned from before anything is foretold
	leastRight = 0.95            // share of right ones, below which nothing is
	newWeight  = 0.05            // of the newest wait
	maxWaiters = 20_000          // beyond it all are forgotten: a bound, not a policy
	lateGrace  = 2 * time.Second // a device that is later than this was not waiting
)

func newLineWaits() *lineWaits {
	return &lineWaits{waiting: make(map[waiter]wait), learned: make(map[lesson]experience)}
}

// refused notes a device that stands in line: it is to ask again after so long,
// and the holds ahead of it add up to so much (more than 0).
func (l *lineWaits) refused(pool, device string, after, ahead time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := waiter{pool, device}
	w, under := l.waiting[who]
	if !under || now.After(w.until) {
		w = wait{since: now, after: after, ahead: ahead}
	}
	w.until = now.Add(after + lateGrace)
	if len(l.waiting) >= maxWaiters {
		clear(l.waiting)
	}
	l.waiting[who] = w
}

// granted learns from a wait that ended, unless the device was late to the line:
// then it waited for itself.
func (l *lineWaits) granted(pool, device string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	who := waiter{pool, device}
	w, under := l.waiting[who]
	delete(l.waiting, who)
	if !under || now.After(w.until) {
		return
	}
	of := lesson{pool, octave(w.ahead)}
	l.learned[of] = l.learned[of].and(w, max(now.Sub(w.since), time.Millisecond))
}

// and adds a wait that lasted so long.
func (e experience) and(w wait, lasted time.Duration) experience {
	weight := max(newWeight, 1/float64(e.waits+1))
	right := 0.0
	if told := max(e.of(w.ahead), w.after); told < 2*lasted && lasted < 2*told {
		right = 1
	}
	scale := math.Log(lasted.Seconds() / w.ahead.Seconds())
	return experience{waits: e.waits + 1, scale: e.scale + weight*(scale-e.scale), right: e.right + weight*(right-e.right)}
}

// of is how long a wait lasts with so much ahead.
func (e experience) of(ahead time.Duration) time.Duration {
	return time.Duration(float64(ahead) * math.Exp(e.scale))
}

// foretell is how long a wait lasts with so much ahead; 0: that cannot be known.
func (l *lineWaits) foretell(pool string, ahead time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.learned[lesson{pool, octave(ahead)}]
	if e.waits < leastWaits || e.right < leastRight {
		return 0
	}
	return e.of(ahead)
}

func octave(d time.Duration) int { return int(math.Floor(math.Log2(d.Seconds()))) }
