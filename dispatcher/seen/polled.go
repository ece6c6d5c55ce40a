package seen

import (
	"encoding/binary"
	"hash/maphash"
)

// rounds is the number of flushes in which a device that only polls is written about once. Flushes are ten seconds apart, so
// store.SeenPrecision is (rounds + 1) * 10 s.
const rounds = 5

// polledDevices is the set of devices that only poll and were recorded recently. It stores hashes of their ids. A million devices take about 12
// MB, and the garbage collector has no pointers to follow.
type polledDevices struct {
	seed  maphash.Seed
	parts [rounds]map[hash]struct{}
	round int
}

// hash has seven bytes of an 8-byte hash. The first byte selects the part. With seven bytes, a map entry takes 8 bytes. It would take 16 with
// a uint64 as the key.
type hash [7]byte

func newPolledDevices() *polledDevices {
	p := &polledDevices{seed: maphash.MakeSeed()}
	for i := range p.parts {
		p.parts[i] = make(map[hash]struct{})
	}
	return p
}

// addDevice adds a device to the set. isNew is true if the device was not in the set. Then the caller must record the device.
func (p *polledDevices) addDevice(device string) (isNew bool) {
	var sum [8]byte
	binary.BigEndian.PutUint64(sum[:], maphash.String(p.seed, device))
	some, key := p.parts[sum[0]%rounds], hash(sum[1:])
	_, known := some[key]
	some[key] = struct{}{}
	return !known
}

// removeNextPart removes the devices of the next part from the set, so that not all devices are written in the same flush.
func (p *polledDevices) removeNextPart() {
	p.round = (p.round + 1) % rounds
	p.parts[p.round] = make(map[hash]struct{}, len(p.parts[p.round]))
}
