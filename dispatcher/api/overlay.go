package api

import "encoding/json"

// overlay lays the payloads of tasks over the one that their batch shares.
type overlay struct {
	shared map[string]json.RawMessage // nil: there is none, or it is no object
}

func newOverlay(shared raw) overlay {
	var o overlay
	if json.Unmarshal(shared, &o.shared) != nil {
		o.shared = nil
	}
	return o
}

// over returns the payload of a task: two objects are merged, member by member,
// the task's own in front. Else it is its own as it came; nil: the batch's.
func (o overlay) over(own json.RawMessage) json.RawMessage {
	var members map[string]json.RawMessage
	if len(o.shared) == 0 || json.Unmarshal(own, &members) != nil || members == nil {
		return own
	}
	for name, value := range o.shared {
		if _, ok := members[name]; !ok {
			members[name] = value
		}
	}
	merged, err := json.Marshal(members)
	if err != nil { // both were read from JSON
		return own
	}
	return merged
}
