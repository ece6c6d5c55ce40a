package limits

import (
	"bytes"
	"encoding/json"
)

// DuplicateFinder finds duplicates in a list of starts, as the default duplicate policy does. Two starts are equal if device, kind and
// payload are equal; JSON payloads are compared by content. A DuplicateFinder does not use Redis, is not safe for concurrent use, and needs
// about 50 bytes of memory for each start. It does not detect that a Taking (a request to a limit set) is sent again; use Taking.ID for
// that.
type DuplicateFinder struct {
	firstNumbers map[digest]int32

	payload json.RawMessage // the latest payload
	content value           // content of the latest payload
}

// NewDuplicateFinder returns a finder that has no starts.
func NewDuplicateFinder() *DuplicateFinder {
	return &DuplicateFinder{firstNumbers: make(map[digest]int32)}
}

// FindEarlier returns the number of the first start that is equal to the start with these facts. The caller numbers the starts; the
// parameter number is the number of this start. If no earlier start is equal, FindEarlier returns false.
func (r *DuplicateFinder) FindEarlier(facts Facts, number int32) (int32, bool) {
	if !bytes.Equal(facts.Payload, r.payload) || r.payload == nil { // the parsed payload is cached, because most starts have the same payload
		text, found := facts.value("payload")
		r.payload, r.content = facts.Payload, value{text, found}
	}
	d := digestOf([]value{{facts.Device, true}, {facts.Kind, true}, r.content})
	first, is := r.firstNumbers[d]
	if !is {
		r.firstNumbers[d] = number
	}
	return first, is
}
