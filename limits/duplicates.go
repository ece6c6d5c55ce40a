package limits

import (
	"bytes"
	"encoding/json"
)

// DuplicateFinder finds equal starts in a list, by the rule of the default duplicate policy. Two starts are equal if their device, kind and
// payload are equal. JSON payloads are compared by content. A DuplicateFinder does not use Redis, is not safe for concurrent use, and needs
// about 50 bytes of memory for each start.
type DuplicateFinder struct {
	firstNumbers map[digest]int32

	payload json.RawMessage // the latest payload
	content value           // content of the latest payload
}

// NewDuplicateFinder returns a finder that has no starts.
func NewDuplicateFinder() *DuplicateFinder {
	return &DuplicateFinder{firstNumbers: make(map[digest]int32)}
}

// FindEarlier adds the start with these facts to the list, under the number startNumber. If an earlier start is equal, FindEarlier returns the
// number of the first equal start. Otherwise found is false.
func (f *DuplicateFinder) FindEarlier(facts Facts, startNumber int32) (earlierNumber int32, found bool) {
	if !bytes.Equal(facts.Payload, f.payload) || f.payload == nil { // the parsed payload is cached, because most starts have the same payload
		text, found := facts.value("payload")
		f.payload, f.content = facts.Payload, value{text, found}
	}
	d := hashValues([]value{{facts.Device, true}, {facts.Kind, true}, f.content})
	first, is := f.firstNumbers[d]
	if !is {
		f.firstNumbers[d] = startNumber
	}
	return first, is
}
