package operators

import (
	"bytes"
	"encoding/json"
	"time"
)

// CloneSettings returns a new batch without tasks. It copies each field of b that NewBatch has, too. It copies NotBefore and NotAfter only
// if they are after now.
func (b Batch) CloneSettings(now time.Time) (clone NewBatch) {
	payload := b.Payload
	b.Payload = nil                  // copied below without encoding, which would escape characters
	text, _ := json.Marshal(b)       // cannot fail: only the payload could be invalid JSON
	_ = json.Unmarshal(text, &clone) // cannot fail: a field has the same JSON form in both types (TestCloneHasEverySetting)
	clone.Payload, clone.NotBefore, clone.NotAfter = payload, timeIfFuture(b.NotBefore, now), timeIfFuture(b.NotAfter, now)
	return clone
}

// CloneTask returns a new task for the same device as task, for a batch that CloneSettings made from b. It copies the payload, the priority
// and the times of task, except values that task inherits from b and times that are not after now.
func (b Batch) CloneTask(task Task, now time.Time) NewTask {
	clone := NewTask{Device: task.Device, Payload: diffMergePatch(b.Payload, task.Payload), NotBefore: timeIfFuture(task.NotBefore, now), NotAfter: timeIfFuture(task.NotAfter, now)}
	if task.Priority != b.Priority {
		clone.Priority = &task.Priority
	}
	return clone
}

// timeIfFuture returns its first argument if that is a time after now, otherwise nil.
func timeIfFuture(at *Time, now time.Time) *time.Time {
	if at == nil || !at.After(now) {
		return nil
	}
	return &at.Time
}

// diffMergePatch returns the merge patch (RFC 7396) that turns original into changed. This patch is the part of a payload that a task does
// not inherit from its batch. The result is nil if original and changed are equal. If one of the two is not an object, the result is the
// value of changed.
func diffMergePatch(original, changed json.RawMessage) json.RawMessage {
	var before, after map[string]json.RawMessage
	if sameJSON(original, changed) {
		return nil
	}
	if json.Unmarshal(original, &before) != nil || json.Unmarshal(changed, &after) != nil || before == nil || after == nil {
		return changed
	}
	patch := map[string]json.RawMessage{}
	for name := range before {
		if _, ok := after[name]; !ok {
			patch[name] = json.RawMessage("null")
		}
	}
	for name, value := range after {
		if own := diffMergePatch(before[name], value); own != nil {
			patch[name] = own
		}
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return changed
	}
	return text
}

// sameJSON reports whether first and second, two JSON texts, are equal apart from white space.
func sameJSON(first, second json.RawMessage) bool {
	var one, other bytes.Buffer
	if len(first) == 0 || len(second) == 0 {
		return len(first) == len(second)
	}
	return json.Compact(&one, first) == nil && json.Compact(&other, second) == nil && bytes.Equal(one.Bytes(), other.Bytes())
}
