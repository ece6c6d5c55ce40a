package dispatcher

import (
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	recallTold   = 100 * time.Millisecond // that a refusal is repeated to a device which can be told of a slot
	recallPolled = time.Second            // and to one that polls: none is asked back sooner
	mostRefusals = 20_000                 // remembered; beyond it all are forgotten: a bound, not a policy
)

// refusals are the devices that a full pool refused a moment ago. One that asks
// the same again gets the same answer from memory: a storm of such reports costs
// neither the ledger nor Redis anything. Nothing is ever granted from here, and
// what leaves a slot of the pool free, as far as this replica knows, ends it.
type refusals struct {
	mu  sync.Mutex
	all map[string]denial // by device
}

type denial struct {
	pool  string
	freed int           // slots of it that were left free before
	until time.Time     // the answer is repeated
	back  time.Time     // when the device was told to come
	reach store.Reach   // as of the report that was refused
	age   time.Duration // of the ledger's clock, to this process'
}

func newRefusals() *refusals {
	return &refusals{all: make(map[string]denial)}
}

// note remembers the refusal of a report that asked and did nothing else.
func (r *refusals) note(device string, of denial) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) >= mostRefusals {
		clear(r.all)
	}
	r.all[device] = of
}

// recall finds the refusal that a device is to hear again.
func (r *refusals) recall(device string, now time.Time, freed func(pool string) int) (denial, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, found := r.all[device]
	if found && (of.freed != freed(of.pool) || !now.Before(of.until)) {
		delete(r.all, device)
		found = false
	}
	return of, found
}

// forget lets a device be looked at again.
func (r *refusals) forget(device string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, device)
}

// onlyAsks says whether a report does nothing but ask for a task.
func onlyAsks(r devices.Report) bool {
	return r.Accept && !says(r)
}

// remember notes a refusal that may be repeated.
func (h *handling) remember() {
	if !h.d.config.Recall || h.reply.Reason != devices.ReasonFull || h.park != nil || !onlyAsks(h.report) || h.reply.Code != "" || h.reply.Credential != "" || len(h.reply.Cancel) > 0 || len(h.pools()) != 1 {
		return
	}
	now, lasts := h.d.config.Now(), recallPolled
	reach := h.reachOf()
	if reach != store.ReachNone {
		lasts = recallTold
	}
	h.d.idlers.refusals.note(string(h.caller.Device), denial{
		pool: h.oldestPool(), freed: h.d.Waiters.Pools.Freed(h.oldestPool()), until: now.Add(lasts), reach: reach,
		back: now.Add(time.Duration(h.reply.ReportAfterMS) * time.Millisecond), age: h.view.Now.Sub(now),
	})
}

// recall answers a report from memory, if its device was refused the same a
// moment ago. One that can be told of a slot is asked back as soon as the
// answer is no longer repeated: it may have been told meanwhile, by another replica.
func (d *Dispatcher) recall(caller devices.Caller, report devices.Report) *handling {
	if !onlyAsks(report) || caller.Via == devices.ViaSession && report.ID == "" {
		return nil
	}
	now := d.config.Now()
	of, found := d.idlers.refusals.recall(string(caller.Device), now, d.Waiters.Pools.Freed)
	if !found {
		return nil
	}
	h := &handling{d: d, caller: caller, report: report, waitsIn: of.pool, reply: devices.Reply{Re: report.ID, Reason: devices.ReasonFull}}
	back := of.back
	if of.reach != store.ReachNone {
		back = of.until
	}
	h.reply.ReportAfterMS = max(back.Sub(now).Milliseconds()+1, 0)
	d.Seen.Mark(string(caller.Device), store.Seen{At: now.Add(of.age), Reach: of.reach})
	return h
}
