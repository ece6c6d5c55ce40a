package seen

import "hash/maphash"

// rounds is for how many flushes, of ten seconds each, a device that polls is not noted
// again. With the time until the flush that writes it, this is store.SeenWithin.
const rounds = 5

// polled are devices that only poll and were noted lately. They are known by their hashes:
// a million take some 15 MB, in which the collector follows no pointers.
type polled struct {
	seed  maphash.Seed
	noted [rounds]map[uint64]struct{}
	round int
}

func newPolled() *polled {
	p := &polled{seed: maphash.MakeSeed()}
	for i := range p.noted {
		p.noted[i] = make(map[uint64]struct{})
	}
	return p
}

// add says whether a device is to be noted.
func (p *polled) add(device string) bool {
	hash := maphash.String(p.seed, device)
	some := p.noted[hash%rounds]
	_, known := some[hash]
	some[hash] = struct{}{}
	return !known
}

// next forgets a part of the devices, in turn: so they are not all written at once.
func (p *polled) next() {
	p.round = (p.round + 1) % rounds
	p.noted[p.round] = make(map[uint64]struct{}, len(p.noted[p.round]))
}
