package limits

import (
	"bytes"
	"encoding/json"
)

// Repeats finds, among things that are to start, those that a duplicate policy
// would take for equal: in device, kind and payload, JSON by its content. It keeps
// about 50 bytes of each. Not safe for concurrent use.
type Repeats struct {
	seen map[digest]int32

	payload json.RawMessage // the last one
	content value           // of it
}

// NewRepeats has seen nothing.
func NewRepeats() *Repeats { return &Repeats{seen: make(map[digest]int32)} }

// Earlier returns the number under which an equal one was asked about first;
// false: this one is the first.
func (r *Repeats) Earlier(f Facts, number int32) (int32, bool) {
	if !bytes.Equal(f.Payload, r.payload) || r.payload == nil { // most share one
		text, found := f.value("payload")
		r.payload, r.content = f.Payload, value{text, found}
	}
	d := digestOf([]value{{f.Device, true}, {f.Kind, true}, r.content})
	first, is := r.seen[d]
	if !is {
		r.seen[d] = number
	}
	return first, is
}
