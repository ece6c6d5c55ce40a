package dispatcher

import (
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// mostAdmitted bounds the memory of admissions, 40 bytes for each device; beyond it all are
// forgotten: a bound, not a policy.
const mostAdmitted = 2_000_000

// admissions remember by whom each device was last admitted without anything to note of it.
// Whatever changes that is news of the device, and makes it forgotten. Devices and callers
// are kept as keyed hashes: two devices are taken for one once in 10^13 times, and then one
// that is not registered yet is told that there is no work.
type admissions struct {
	seed maphash.Seed

	mu  sync.Mutex
	all map[uint64]admission
}

type admission struct {
	caller uint64
	reach  store.Reach // as it was last marked
}

func newAdmissions() *admissions {
	return &admissions{seed: maphash.MakeSeed(), all: make(map[uint64]admission)}
}

func (a *admissions) keyOf(device string) uint64 { return maphash.String(a.seed, device) }

func (a *admissions) callerOf(c devices.Caller) uint64 {
	return maphash.Bytes(a.seed, binary.AppendVarint(c.Token[:], int64(c.Via)))
}

// note remembers an admission.
func (a *admissions) note(c devices.Caller, reach store.Reach) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) >= mostAdmitted {
		clear(a.all)
	}
	a.all[a.keyOf(string(c.Device))] = admission{a.callerOf(c), reach}
}

// has is whether the device was last admitted by this caller, and how it could be told then.
func (a *admissions) has(c devices.Caller) (store.Reach, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of, known := a.all[a.keyOf(string(c.Device))]
	return of.reach, known && of.caller == a.callerOf(c)
}

// forget forgets a device; empty: all.
func (a *admissions) forget(device string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if device == "" {
		clear(a.all)
	}
	delete(a.all, a.keyOf(device))
}
