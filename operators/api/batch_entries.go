package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// readQueue returns the tasks that a request adds to a new batch. For a long body, list is its list of tasks. For a short body, list is
// nil, and the tasks are in batch, the decoded request.
func readQueue(batch operators.NewBatch, list *bodyList, limits BodyLimits) (store.NewBatchTasks, error) {
	kinds := 0
	for _, given := range []bool{len(batch.Devices) > 0, len(batch.Tasks) > 0, list != nil && list.name != "", batch.Select != nil} {
		if given {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return store.NewBatchTasks{}, taskSourceProblem()
	case batch.Select != nil:
		return store.NewBatchTasks{Tags: batch.Select.Tags}, nil
	case list != nil:
		return store.NewBatchTasks{Tasks: checkedTasks(batch, jsonEntries(list.name, list.entries()), limits)}, nil
	}
	name, tasks := "tasks", batch.Tasks
	for _, device := range batch.Devices {
		name, tasks = "devices", append(tasks, operators.NewTask{Device: device})
	}
	return store.NewBatchTasks{Tasks: checkedTasks(batch, jsonEntries(name, func(yield func(operators.NewTask, error) bool) {
		for _, task := range tasks {
			if !yield(task, nil) {
				return
			}
		}
	}), limits)}, nil
}

// entryList has the entries of a new batch. Its other fields serve error messages: they give the position of an entry in the request, which
// is an index or a line number.
type entryList struct {
	entries        iter.Seq2[operators.NewTask, error]
	positionFormat string                          // format of a position, such as line %d
	position       func(i int) int                 // position of entry i, which must be the entry that was read last
	entryError     func(number int, e error) error // adds the position number to e, the error of an entry; nil if e is nil
}

// jsonEntries returns the entries of the JSON list with this name in a request.
func jsonEntries(listName string, entries iter.Seq2[operators.NewTask, error]) entryList {
	return entryList{entries, listName + "[%d]", func(i int) int { return i }, func(i int, err error) error { return entryProblem(listName, i, err) }}
}

// checkedTasks yields the task of each entry in list. batch has the settings of these tasks. If an entry is invalid, it yields an error,
// which refuses the whole batch.
func checkedTasks(batch operators.NewBatch, list entryList, limits BodyLimits) iter.Seq2[store.NewTask, error] {
	shared, repeats := newOverlay(batch.Payload), newDuplicates(batch)
	return func(yield func(store.NewTask, error) bool) {
		i := 0
		for entry, err := range list.entries {
			var task store.NewTask
			if err == nil {
				task, err = newTask(entry, batch, shared)
			}
			if err == nil {
				err = limits.checkCount(i + 1)
			}
			if err == nil {
				err = repeats.check(&task, list.positionFormat, list.position(i))
			}
			if !yield(task, list.entryError(list.position(i), err)) {
				return
			}
			i++
		}
	}
}

// entryProblem returns the problem for err, an error about the entry of list with this index. It returns nil if err is nil.
func entryProblem(list string, index int, err error) error {
	if err == nil {
		return nil
	}
	if isUnknownField(err) {
		return problem(http.StatusBadRequest, codeUnknownField, fmt.Sprintf("%s[%d]: %v", list, index, err))
	}
	return problem(http.StatusUnprocessableEntity, entryCode(err, codeInvalidField), fmt.Sprintf("%s[%d]: %v", list, index, err))
}

// checkPayload returns a problem if payload is too long.
func checkPayload(payload json.RawMessage) error {
	if len(payload) > maxPayload {
		return problem(http.StatusUnprocessableEntity, codePayloadTooLarge, fmt.Sprintf("payload: at most %d bytes", maxPayload))
	}
	return nil
}

// nilIfNull returns nil if value is the JSON value null, else value, so that null and an absent value are the same.
func nilIfNull(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// newTask checks one entry of a batch and returns its task. payloads computes the payload of the task.
func newTask(entry operators.NewTask, batch operators.NewBatch, payloads overlay) (store.NewTask, error) {
	if _, err := devices.ParseID(entry.Device); err != nil {
		return store.NewTask{}, err
	}
	if entry.Priority != nil && (*entry.Priority < -maxPriority || *entry.Priority > maxPriority) {
		return store.NewTask{}, fmt.Errorf("priority: must be between %d and %d", -maxPriority, maxPriority)
	}
	payload := payloads.mergePayload(nilIfNull(entry.Payload))
	if err := checkPayload(payload); err != nil {
		return store.NewTask{}, err
	}
	if err := checkTaskTimes(entry, batch); err != nil {
		return store.NewTask{}, err
	}
	return store.NewTask{Device: entry.Device, Payload: payload, Priority: entry.Priority, NotBefore: entry.NotBefore, NotAfter: entry.NotAfter}, nil
}

// checkTaskTimes returns an error for a task that could never start because of its own times and the times of its batch.
func checkTaskTimes(entry operators.NewTask, batch operators.NewBatch) error {
	if err := checkYears(entry.NotBefore, entry.NotAfter); err != nil {
		return err
	}
	switch {
	case isEmptySpan(entry.NotBefore, entry.NotAfter):
		return errors.New("not_after: must be later than not_before")
	case isEmptySpan(entry.NotBefore, batch.NotAfter):
		return errors.New("not_before: must be before the not_after of the batch")
	case isEmptySpan(batch.NotBefore, entry.NotAfter):
		return errors.New("not_after: must be later than the not_before of the batch")
	}
	return nil
}

// Values of the field duplicates that require a search for equal tasks in the batch.
const (
	refuseDuplicates = "refuse"
	skipDuplicates   = "skip"
)

// errDuplicate is the error of a task that equals an earlier task of its batch.
var errDuplicate = errors.New("is the same task")

// duplicates finds equal tasks of one batch. A nil *duplicates allows them.
type duplicates struct {
	refuse  bool
	kind    string
	payload json.RawMessage // payload of tasks without a payload of their own
	repeats *limits.DuplicateFinder
}

// newDuplicates returns the check for equal tasks that batch asks for, or nil if it allows equal tasks.
func newDuplicates(batch operators.NewBatch) *duplicates {
	if batch.Duplicates != refuseDuplicates && batch.Duplicates != skipDuplicates {
		return nil
	}
	return &duplicates{refuse: batch.Duplicates == refuseDuplicates, kind: batch.Kind, payload: nilIfNull(batch.Payload), repeats: limits.NewDuplicateFinder()}
}

// awaitDuplicateTurn waits until no other long batch searches for equal tasks, because only one may do so at a time. If batch allows equal
// tasks, it does not wait. The caller must call endTurn after the search.
func (b *batches) awaitDuplicateTurn(ctx context.Context, batch operators.NewBatch) (endTurn func(), err error) {
	if newDuplicates(batch) == nil {
		return func() {}, nil
	}
	if endTurn, err = awaitTurn(ctx, b.duplicateTurns); err != nil {
		return nil, fmt.Errorf("waiting for the duplicate check of another batch: %w", err)
	}
	return endTurn, nil
}

// check looks for an earlier task that equals task. If there is one and d.refuse is true, it returns an error; if d.refuse is false, it
// marks task to be skipped. For error messages, positionFormat is the format of a position in the request, and number the position of task.
func (d *duplicates) check(task *store.NewTask, positionFormat string, number int) error {
	if d == nil {
		return nil
	}
	facts := limits.Facts{Device: task.Device, Kind: d.kind, Payload: task.Payload}
	if task.Payload == nil {
		facts.Payload = d.payload
	}
	first, isRepeat := d.repeats.FindEarlier(facts, int32(number)) // the number of entries in a body fits into an int32
	task.Repeated = isRepeat
	if isRepeat && d.refuse {
		return fmt.Errorf("%w as "+positionFormat+": equal in device (%s), kind and payload", errDuplicate, first, task.Device)
	}
	return nil
}

// entryCode returns the problem code for the error of one entry of a list. If err has no code, it returns defaultCode.
func entryCode(err error, defaultCode string) string {
	if errors.Is(err, errDuplicate) {
		return codeDuplicateTask
	}
	return defaultCode
}

// overlay computes the payload of a task from the payload that its batch shares and the task's own payload.
type overlay struct {
	shared json.RawMessage // nil means that there is no shared payload, or that it is not an object
}

// newOverlay returns the overlay for the payload that a batch shares.
func newOverlay(shared json.RawMessage) overlay {
	if _, ok := objectMembers(shared); !ok {
		return overlay{}
	}
	return overlay{shared}
}

// mergePayload returns the payload of a task. If payload is an object, it is a merge patch (RFC 7396) to the shared payload. Otherwise
// mergePayload returns payload unchanged. If the result is nil, the task has the payload of the batch.
func (o overlay) mergePayload(payload json.RawMessage) json.RawMessage {
	if _, ok := objectMembers(payload); !ok || o.shared == nil {
		return payload
	}
	return mergePatch(o.shared, payload)
}

// mergePatch applies patch, a merge patch by RFC 7396, to target. Unchanged values keep their bytes, so numbers keep all their digits.
func mergePatch(target, patch json.RawMessage) json.RawMessage {
	changes, ok := objectMembers(patch)
	if !ok {
		return patch
	}
	merged, ok := objectMembers(target)
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
	if err != nil { // impossible, because both were decoded from JSON
		return patch
	}
	return text
}

// objectMembers returns the members of an object. ok is false if text is not an object.
func objectMembers(text json.RawMessage) (members map[string]json.RawMessage, ok bool) {
	return members, json.Unmarshal(text, &members) == nil && members != nil
}
