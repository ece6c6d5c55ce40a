package operators

import (
	"bytes"
	"encoding/json"
	"time"
)

// CloneSettings returns a new batch with the work and the settings of b, without tasks. Times that are not after now are left out.
func (b Batch) CloneSettings(now time.Time) NewBatch {
	return NewBatch{
		Name: b.Name, Pool: b.Pool, Kind: b.Kind, Payload: b.Payload, Priority: b.Priority, Weight: b.Weight, Lane: b.Lane,
		NotBefore: timeIfFuture(b.NotBefore, now), NotAfter: timeIfFuture(b.NotAfter, now), MaxWaitMS: b.MaxWaitMS, Windows: b.Windows, Limits: b.Limits, FinishInside: &b.FinishInside,
		MaxAttempts: b.MaxAttempts, RetryOn: b.RetryOn, RetryBackoffMS: &b.RetryBackoffMS, OnLost: b.OnLost, LeaseMS: b.LeaseMS, MaxRunMS: b.MaxRunMS, Abort: b.Abort,
	}
}

// CloneTask returns a new task like t, for a batch that CloneSettings made from b. It has only the payload, the priority and the
// times that t does not inherit from b. Times that are not after now are left out.
func (b Batch) CloneTask(t Task, now time.Time) NewTask {
	clone := NewTask{Device: t.Device, Payload: diffMergePatch(b.Payload, t.Payload), NotBefore: timeIfFuture(t.NotBefore, now), NotAfter: timeIfFuture(t.NotAfter, now)}
	if t.Priority != b.Priority {
		clone.Priority = &t.Priority
	}
	return clone
}

// timeIfFuture returns the time if it is after now, otherwise nil.
func timeIfFuture(at *Time, now time.Time) *time.Time {
	if at == nil || !at.After(now) {
		return nil
	}
	return &at.Time
}

// diffMergePatch returns the merge patch (RFC 7396) that changes from into to: the part of the payload that a task does not
// inherit. It returns nil if the two are equal.
func diffMergePatch(from, to json.RawMessage) json.RawMessage {
	var before, after map[string]json.RawMessage
	if sameJSON(from, to) {
		return nil
	}
	if json.Unmarshal(from, &before) != nil || json.Unmarshal(to, &after) != nil || before == nil || after == nil {
		return to
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
		return to
	}
	return text
}

// sameJSON reports whether two JSON texts are equal apart from white space.
func sameJSON(x, y json.RawMessage) bool {
	var one, other bytes.Buffer
	if len(x) == 0 || len(y) == 0 {
		return len(x) == len(y)
	}
	return json.Compact(&one, x) == nil && json.Compact(&other, y) == nil && bytes.Equal(one.Bytes(), other.Bytes())
}
