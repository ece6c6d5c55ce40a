package seen

import (
	"encoding/binary"
	"hash/maphash"
)

// rounds is for how many flushes, of ten seconds each, a device that polls is not noted
// again. With the time until the flush that writes it, this is store.SeenWithin.
const rounds = 5

// polled are devices that only poll and were noted lately. They are known by their hashes:
// a million take some 12 MB, in which the collector follows no pointers.
type polled struct {
	seed  maphash.Seed
	noted [rounds]map[hash]struct{}
	round int
}

// hash is all but a byte of one: a map takes 8 bytes for it and nothing, and 16 for a
// uint64.
type hash [7]byte

func newPolled() *polled {
	p := &polled{seed: maphash.MakeSeed()}
	for i := range p.noted {
		p.noted[i] = make(map[hash]struct{})
	}
	return p
}

// add says whether a device is to be noted.
func (p *polled) add(device string) bool {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], maphash.String(p.seed, device))
	some, key := p.noted[sum[0]%rounds], hash(sum[1:])
	_, known := some[key]
	some[key] = struct{}{}
	return !known
}

// next forgets a part of the devices, in turn: so they are not all written at once.
func (p *polled) next() {
	p.round = (p.round + 1) % rounds
	p.noted[p.round] = make(map[hash]struct{}, len(p.noted[p.round]))
}
