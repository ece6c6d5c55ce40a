package api

import "encoding/json"

// overlay lays the payloads of tasks over the one that their batch shares.
type overlay struct {
	shared json.RawMessage // nil: there is none, or it is no object
}

func newOverlay(shared json.RawMessage) overlay {
	if _, ok := members(shared); !ok {
		return overlay{}
	}
	return overlay{shared}
}

// over returns the payload of a task: an object is a merge patch (RFC 7396) to
// the shared one. Else it is its own as it came; nil: the batch's.
func (o overlay) over(own json.RawMessage) json.RawMessage {
	if _, ok := members(own); !ok || o.shared == nil {
		return own
	}
	return mergePatch(o.shared, own)
}

// mergePatch is MergePatch of RFC 7396. Unchanged values keep their
// bytes: numbers have all their digits.
func mergePatch(target, patch json.RawMessage) json.RawMessage {
	changes, ok := members(patch)
	if !ok {
		return patch
	}
	merged, ok := members(target)
	if !ok {
		merged = make(map[string]json.RawMessage, len(changes))
	}
	for name, value := range changes {
		if string(value) == "null" {
			delete(merged, name)
			continue
		}
		merged[name] = mergePatch(merged[name], value)
	}
	text, err := json.Marshal(merged)
	if err != nil { // both were read from JSON
		return patch
	}
	return text
}

// members of an object; false: it is none.
func members(text json.RawMessage) (all map[string]json.RawMessage, ok bool) {
	return all, json.Unmarshal(text, &all) == nil && all != nil
}
