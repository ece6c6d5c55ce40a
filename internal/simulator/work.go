package simulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// The reasons why a task ended before its work was done.
var (
	errLeaseOver = errors.New("lease over")
	errCancelled = errors.New("cancelled by the server")
	errRebooted  = errors.New("rebooted")
)

// minUse is the shortest remaining lease for which a device enters the external system. A grant with less time left counts as over.
const minUse = 10 * time.Millisecond

// parseWorkTime returns the work time in a payload. ok is false if the payload has none.
func parseWorkTime(payload json.RawMessage) (work time.Duration, ok bool) {
	var p struct {
		WorkMS *int64 `json:"work_ms"`
	}
	if json.Unmarshal(payload, &p) != nil || p.WorkMS == nil || *p.WorkMS < 0 {
		return 0, false
	}
	return time.Duration(*p.WorkMS) * time.Millisecond, true
}

// lease is the time for which a running task may use the external system. A lease is never shortened, because replies may
// arrive in any order and each granted lease stays valid.
type lease struct {
	mu     sync.Mutex
	sentAt time.Time // when the report from which the lease counts was first sent
	until  time.Time
	timer  *time.Timer
}

// newLease returns a lease that ends at `until`, and then calls onEnd. sentAt is the time at which the report that was answered with the
// lease was first sent.
func newLease(sentAt, until time.Time, onEnd func()) *lease {
	return &lease{sentAt: sentAt, until: until, timer: time.AfterFunc(time.Until(until), onEnd)}
}

// extend changes the end of the lease to `until`. sentAt is the time at which the report that renewed the lease was sent. If the lease
// already lasts so long, extend changes nothing and returns true. If the lease has already ended, extend returns false.
func (l *lease) extend(sentAt, until time.Time) (isExtended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !until.After(l.until) {
		return true
	}
	if !l.timer.Stop() {
		return false
	}
	l.sentAt, l.until = sentAt, until
	l.timer.Reset(time.Until(until))
	return true
}

// renewalTime returns the time at which the device must renew the lease: when half of it has passed.
func (l *lease) renewalTime() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sentAt.Add(l.until.Sub(l.sentAt) / 2)
}

func (l *lease) length() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Sub(l.sentAt)
}

func (l *lease) remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.until)
}

// runningTask is a task that a device works on.
type runningTask struct {
	visit
	work     time.Duration
	silent   bool
	gone     bool          // silent for good
	rebootAt time.Duration // time after the start of the work; 0 means never
	started  time.Time
	lease    *lease
	leases   *leases // leases of the fleet
	stop     context.CancelCauseFunc
	done     chan taskEnd
}

type taskEnd struct {
	cause error         // nil means that the work was done
	late  time.Duration // time by which the device left after the end of the lease; negative if it left before
}

// start begins the work under a lease from sentAt to leaseUntil. When the work has ended and the device has left the
// external system, the channel done receives a taskEnd. If externalAddr is empty, the device does not visit the external
// system.
func (j *runningTask) start(ctx context.Context, sentAt, leaseUntil time.Time, externalAddr string) {
	ctx, j.stop = context.WithCancelCause(ctx)
	j.started = time.Now()
	j.lease = newLease(sentAt, leaseUntil, func() { j.stop(errLeaseOver) })
	j.leases.add(j.token, j.lease)
	j.done = make(chan taskEnd, 1)
	go func() {
		err := j.visitAndWork(ctx, externalAddr)
		j.leases.remove(j.token)
		j.lease.timer.Stop()
		j.stop(nil)
		j.done <- taskEnd{err, -j.lease.remaining()}
	}()
}

// visitAndWork visits the external system and works until the work is done or ctx ends. If externalAddr is "", it works
// without a visit.
func (j *runningTask) visitAndWork(ctx context.Context, externalAddr string) error {
	if externalAddr != "" {
		if err := j.enter(ctx, externalAddr); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		defer j.leave()
	}
	length, cause := j.work, error(nil)
	if j.rebootAt > 0 {
		length, cause = j.rebootAt, errRebooted
	}
	if j.silent {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return cause
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (j *runningTask) progress() (doneShare float64) {
	if j.work <= 0 {
		return 1
	}
	return min(1, float64(time.Since(j.started))/float64(j.work))
}
