package simulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

// Why a task ended before its work was done.
var (
	errLeaseOver = errors.New("lease over")
	errCancelled = errors.New("cancelled by the server")
	errRebooted  = errors.New("rebooted")
)

// minUse is the least time for which going to the external system is worth
// it; a grant with less left counts as over.
const minUse = 10 * time.Millisecond

// workPayload is what tasks made for the simulator carry.
type workPayload struct {
	WorkMS *int64 `json:"work_ms"`
}

// workTime is the time that a payload asks for; false: it asks for none.
func workTime(payload json.RawMessage) (time.Duration, bool) {
	var p workPayload
	if json.Unmarshal(payload, &p) != nil || p.WorkMS == nil || *p.WorkMS < 0 {
		return 0, false
	}
	return time.Duration(*p.WorkMS) * time.Millisecond, true
}

// lease is the time for which a running task may use the external system. It
// only ever grows: each promise of the server stands, whatever order the
// replies arrive in. Times carry Go's monotonic clock.
type lease struct {
	mu    sync.Mutex
	sent  time.Time // when the report was first sent that the lease counts from
	until time.Time
	timer *time.Timer
}

// newLease calls over when the lease has ended.
func newLease(sent, until time.Time, over func()) *lease {
	return &lease{sent: sent, until: until, timer: time.AfterFunc(time.Until(until), over)}
}

// extend is false when the lease had ended before.
func (l *lease) extend(sent, until time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !until.After(l.until) {
		return true
	}
	if !l.timer.Stop() {
		return false
	}
	l.sent, l.until = sent, until
	l.timer.Reset(time.Until(until))
	return true
}

// half is when to renew.
func (l *lease) half() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent.Add(l.until.Sub(l.sent) / 2)
}

// length is the whole of the lease.
func (l *lease) length() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Sub(l.sent)
}

// left is the time until the lease ends.
func (l *lease) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.until)
}

// job is a task that a device is working on. The plan (work, silent, rebootAt)
// is fixed at its start.
type job struct {
	visit
	work     time.Duration
	silent   bool
	gone     bool          // silent for good
	rebootAt time.Duration // into the work; 0 = never
	started  time.Time
	lease    *lease
	leases   *leases // of the fleet
	stop     context.CancelCauseFunc
	done     chan ending
}

// ending is how a job ended.
type ending struct {
	cause error         // nil: the work was done
	late  time.Duration // out so long after the end of the lease; negative: before
}

// start begins the work; its end arrives on done, once. When it does, the
// device has left the external system.
func (j *job) start(ctx context.Context, sent, until time.Time, external string) {
	ctx, j.stop = context.WithCancelCause(ctx)
	j.started = time.Now()
	j.lease = newLease(sent, until, func() { j.stop(errLeaseOver) })
	j.leases.add(j.token, j.lease)
	j.done = make(chan ending, 1)
	go func() {
		err := j.use(ctx, external)
		j.leases.remove(j.token)
		j.lease.timer.Stop()
		j.stop(nil)
		j.done <- ending{err, -j.lease.left()}
	}()
}

// use visits the external system, if there is one, for as long as the work takes.
func (j *job) use(ctx context.Context, external string) error {
	if external != "" {
		if err := j.enter(ctx, external); err != nil {
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

// progress is the share of the work that is done.
func (j *job) progress() float64 {
	if j.work <= 0 {
		return 1
	}
	return min(1, float64(time.Since(j.started))/float64(j.work))
}
