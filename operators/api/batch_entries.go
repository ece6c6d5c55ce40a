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

// readQueue returns the tasks that a request adds to a new batch. list is the list of tasks in a long body; if list
// is nil, the tasks are in the decoded request.
func readQueue(in operators.NewBatch, list *bodyList, limits BodyLimits) (store.NewBatchTasks, error) {
	kinds := 0
	for _, given := range []bool{len(in.Devices) > 0, len(in.Tasks) > 0, list != nil && list.name != "", in.Select != nil} {
		if given {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return store.NewBatchTasks{}, taskSourceProblem()
	case in.Select != nil:
		return store.NewBatchTasks{Tags: in.Select.Tags}, nil
	case list != nil:
		return store.NewBatchTasks{Tasks: checkedTasks(in, jsonEntries(list.name, list.entries()), limits)}, nil
	}
	name, tasks := "tasks", in.Tasks
	for _, device := range in.Devices {
		name, tasks = "devices", append(tasks, operators.NewTask{Device: device})
	}
	return store.NewBatchTasks{Tasks: checkedTasks(in, jsonEntries(name, func(yield func(operators.NewTask, error) bool) {
		for _, task := range tasks {
			if !yield(task, nil) {
				return
			}
		}
	}), limits)}, nil
}

// entryList has the entries of a new batch, and the functions with which errors name the position
// of an entry in the request.
type entryList struct {
	entries        iter.Seq2[operators.NewTask, error]
	positionFormat string                          // format of a position in an error
	position       func(i int) int                 // number of the entry that was read last
	entryError     func(number int, e error) error // the error of an entry; nil if e is nil
}

// jsonEntries returns the entries of a JSON list.
func jsonEntries(list string, entries iter.Seq2[operators.NewTask, error]) entryList {
	return entryList{entries, list + "[%d]", func(i int) int { return i }, func(i int, err error) error { return entryProblem(list, i, err) }}
}

// checkedTasks yields the tasks of a batch. It yields an error for an invalid task, which refuses the whole batch.
func checkedTasks(in operators.NewBatch, list entryList, limits BodyLimits) iter.Seq2[store.NewTask, error] {
	shared, repeats := newOverlay(in.Payload), newDuplicates(in)
	return func(yield func(store.NewTask, error) bool) {
		i := 0
		for entry, err := range list.entries {
			var task store.NewTask
			if err == nil {
				task, err = newTask(entry, in, shared)
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

func entryProblem(list string, i int, err error) error {
	if err == nil {
		return nil
	}
	if isUnknownField(err) {
		return problem(http.StatusBadRequest, codeUnknownField, fmt.Sprintf("%s[%d]: %v", list, i, err))
	}
	return problem(http.StatusUnprocessableEntity, entryCode(err, codeInvalidField), fmt.Sprintf("%s[%d]: %v", list, i, err))
}

func checkPayload(payload json.RawMessage) error {
	if len(payload) > maxPayload {
		return problem(http.StatusUnprocessableEntity, codePayloadTooLarge, fmt.Sprintf("payload: at most %d bytes", maxPayload))
	}
	return nil
}

// nilIfNull returns nil if r is the JSON value null, so that null and an absent value are the same.
func nilIfNull(r json.RawMessage) json.RawMessage {
	if string(r) == "null" {
		return nil
	}
	return r
}

// newTask checks one entry and returns its task.
func newTask(t operators.NewTask, in operators.NewBatch, shared overlay) (store.NewTask, error) {
	if _, err := devices.ParseID(t.Device); err != nil {
		return store.NewTask{}, err
	}
	if t.Priority != nil && (*t.Priority < -maxPriority || *t.Priority > maxPriority) {
		return store.NewTask{}, fmt.Errorf("priority: must be between %d and %d", -maxPriority, maxPriority)
	}
	payload := shared.mergePayload(nilIfNull(t.Payload))
	if err := checkPayload(payload); err != nil {
		return store.NewTask{}, err
	}
	if err := checkTaskTimes(t, in); err != nil {
		return store.NewTask{}, err
	}
	return store.NewTask{Device: t.Device, Payload: payload, Priority: t.Priority, NotBefore: t.NotBefore, NotAfter: t.NotAfter}, nil
}

// checkTaskTimes refuses a task that could never start because of its own times and the times of its batch.
func checkTaskTimes(t operators.NewTask, in operators.NewBatch) error {
	if err := checkYears(t.NotBefore, t.NotAfter); err != nil {
		return err
	}
	switch {
	case isEmptySpan(t.NotBefore, t.NotAfter):
		return errors.New("not_after: must be later than not_before")
	case isEmptySpan(t.NotBefore, in.NotAfter):
		return errors.New("not_before: must be before the not_after of the batch")
	case isEmptySpan(in.NotBefore, t.NotAfter):
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

func newDuplicates(in operators.NewBatch) *duplicates {
	if in.Duplicates != refuseDuplicates && in.Duplicates != skipDuplicates {
		return nil
	}
	return &duplicates{refuse: in.Duplicates == refuseDuplicates, kind: in.Kind, payload: nilIfNull(in.Payload), repeats: limits.NewDuplicateFinder()}
}

// awaitDuplicateTurn waits until no other long batch searches for equal tasks, because only one may do so at a time.
// The caller must call leave when it is done.
func (b *batches) awaitDuplicateTurn(ctx context.Context, in operators.NewBatch) (leave func(), err error) {
	if newDuplicates(in) == nil {
		return func() {}, nil
	}
	if leave, err = awaitTurn(ctx, b.duplicateTurns); err != nil {
		return nil, fmt.Errorf("waiting for the duplicate check of another batch: %w", err)
	}
	return leave, nil
}

// check refuses a task that equals an earlier one, or marks it to be skipped. positionFormat is the format of its position in
// the request, and number the number, for error messages.
func (d *duplicates) check(t *store.NewTask, positionFormat string, number int) error {
	if d == nil {
		return nil
	}
	facts := limits.Facts{Device: t.Device, Kind: d.kind, Payload: t.Payload}
	if t.Payload == nil {
		facts.Payload = d.payload
	}
	first, isRepeat := d.repeats.FindEarlier(facts, int32(number)) // the number of entries in a body fits into an int32
	t.Repeated = isRepeat
	if isRepeat && d.refuse {
		return fmt.Errorf("%w as "+positionFormat+": equal in device (%s), kind and payload", errDuplicate, first, t.Device)
	}
	return nil
}

// entryCode returns the problem code for the error of one entry of a list. If err has no code, it
// returns defaultCode.
func entryCode(err error, defaultCode string) string {
	if errors.Is(err, errDuplicate) {
		return codeDuplicateTask
	}
	return defaultCode
}

// overlay computes the payload of a task from the payload that its batch shares and the task's own
// payload.
type overlay struct {
	shared json.RawMessage // nil means that there is no shared payload, or that it is not an object
}

func newOverlay(shared json.RawMessage) overlay {
	if _, ok := objectMembers(shared); !ok {
		return overlay{}
	}
	return overlay{shared}
}

// mergePayload returns the payload of a task. If payload is an object, it is a merge patch (RFC 7396) to the shared payload. Otherwise
// mergePayload returns payload unchanged; nil means the payload of the batch.
func (o overlay) mergePayload(payload json.RawMessage) json.RawMessage {
	if _, ok := objectMembers(payload); !ok || o.shared == nil {
		return payload
	}
	return mergePatch(o.shared, payload)
}

// mergePatch applies a merge patch by RFC 7396. Unchanged values keep their bytes, so numbers keep all their digits.
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
