package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// taskList is the list of tasks of a new batch. Its tasks are checked one after the other, while the ledger stores them.
type taskList struct {
	place   string // format of the position of a task in the request: line %d, tasks[%d] or devices[%d]
	entries iter.Seq[listEntry[operators.NewTask]]
}

// linePlace is the place of a task in CSV or NDJSON.
const linePlace = "line %d"

// decodedTasks returns the tasks in the fields devices and tasks of a batch.
func decodedTasks(batch operators.NewBatch) taskList {
	place, tasks := "tasks[%d]", batch.Tasks
	for _, device := range batch.Devices {
		place, tasks = "devices[%d]", append(tasks, operators.NewTask{Device: device})
	}
	return taskList{place, func(yield func(listEntry[operators.NewTask]) bool) {
		for i, task := range tasks {
			if !yield(listEntry[operators.NewTask]{value: task, position: i}) {
				return
			}
		}
	}}
}

// checkedTasks yields each task of list. batch has the settings of these tasks. If an entry is invalid, it yields an error, which refuses
// the whole batch.
func checkedTasks(batch operators.NewBatch, list taskList, bodyLimits BodyLimits) iter.Seq2[store.NewTask, error] {
	shared, repeats := newPayloadMerger(batch.Payload), newDuplicateFinder(batch)
	return func(yield func(store.NewTask, error) bool) {
		count := 0
		for l := range list.entries {
			if errors.Is(l.err, io.EOF) {
				return
			}
			var task store.NewTask
			err := l.err
			if err == nil {
				task, err = newTask(l.value, batch, shared)
			}
			if count++; err == nil && count > bodyLimits.MaxTasks {
				err = fmt.Errorf("at most %d tasks in a batch", bodyLimits.MaxTasks)
			}
			if err == nil {
				err = repeats.checkTask(&task, list.place, l.position)
			}
			if !yield(task, entryProblem(list.place, l.position, err)) {
				return
			}
		}
	}
}

// entryProblem returns the problem for a list entry that is invalid because of cause. number is the position of the entry, and
// positionFormat, such as linePlace, is the format of the position. If cause is nil, it returns nil.
func entryProblem(positionFormat string, number int, cause error) error {
	status, code := http.StatusUnprocessableEntity, codeInvalidField
	switch {
	case cause == nil:
		return nil
	case errors.Is(cause, errDuplicate):
		code = codeDuplicateTask
	case positionFormat == linePlace:
		code = codeInvalidLine
	case isUnknownFieldError(cause):
		status, code = http.StatusBadRequest, codeUnknownField
	}
	return newProblem(status, code, fmt.Sprintf(positionFormat+": %v", number, cause)).withCause(cause)
}

func checkPayload(payload json.RawMessage) error {
	if len(payload) > maxPayload {
		return newProblem(http.StatusUnprocessableEntity, codePayloadTooLarge, fmt.Sprintf("payload: at most %d bytes", maxPayload))
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

// newTask checks one entry of a batch and returns its task. sharedPayload is the payload of the batch, which newTask merges with the payload of
// the entry.
func newTask(entry operators.NewTask, batch operators.NewBatch, sharedPayload payloadMerger) (store.NewTask, error) {
	if _, err := devices.ParseID(entry.Device); err != nil {
		return store.NewTask{}, err
	}
	if entry.Priority != nil && (*entry.Priority < -maxPriority || *entry.Priority > maxPriority) {
		return store.NewTask{}, fmt.Errorf("priority: must be between %d and %d", -maxPriority, maxPriority)
	}
	payload := sharedPayload.mergePayload(nilIfNull(entry.Payload))
	if err := checkPayload(payload); err != nil {
		return store.NewTask{}, err
	}
	if err := checkTaskTimes(entry, batch); err != nil {
		return store.NewTask{}, err
	}
	return store.NewTask{Device: entry.Device, Payload: payload, Priority: entry.Priority, NotBefore: entry.NotBefore, NotAfter: entry.NotAfter}, nil
}

// checkTaskTimes returns an error for a task that could never start, because its own times and the times of its batch contradict each other.
func checkTaskTimes(entry operators.NewTask, batch operators.NewBatch) error {
	if err := checkStorableTimes(entry.NotBefore, entry.NotAfter); err != nil {
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

// Values of the field `duplicates` that require a search for equal tasks in the batch.
const (
	refuseDuplicates = "refuse"
	skipDuplicates   = "skip"
)

// errDuplicate is the error of a task that equals an earlier task of its batch.
var errDuplicate = errors.New("is the same task")

// duplicateFinder finds equal tasks of one batch. A nil *duplicateFinder allows equal tasks.
type duplicateFinder struct {
	refuse  bool
	kind    string
	payload json.RawMessage // payload of tasks without a payload of their own
	repeats *limits.DuplicateFinder
}

// newDuplicateFinder returns the check for equal tasks that batch asks for, or nil if it allows equal tasks.
func newDuplicateFinder(batch operators.NewBatch) *duplicateFinder {
	if batch.Duplicates != refuseDuplicates && batch.Duplicates != skipDuplicates {
		return nil
	}
	return &duplicateFinder{refuse: batch.Duplicates == refuseDuplicates, kind: batch.Kind, payload: nilIfNull(batch.Payload), repeats: limits.NewDuplicateFinder()}
}

// startDuplicateSearch waits until no other long batch searches for equal tasks, because only one may do so at a time. If batch allows equal
// tasks, it does not wait. The caller must call endSearch after the search.
func (b *batchOperations) startDuplicateSearch(ctx context.Context, batch operators.NewBatch) (endSearch func(), err error) {
	if newDuplicateFinder(batch) == nil {
		return func() {}, nil
	}
	if endSearch, err = startWhenFree(ctx, b.duplicateTurns); err != nil {
		return nil, fmt.Errorf("waiting for the duplicate check of another batch: %w", err)
	}
	return endSearch, nil
}

// checkTask looks for an earlier task that equals task. If there is one and d.refuse is true, it returns an error. If d.refuse is false, it
// marks task to be skipped. positionFormat and number are those of entryProblem.
func (d *duplicateFinder) checkTask(task *store.NewTask, positionFormat string, number int) error {
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

// payloadMerger computes the payload of a task from the payload that its batch shares and the task's own payload.
type payloadMerger struct {
	shared json.RawMessage // nil means that there is no shared payload, or that it is not an object
}

func newPayloadMerger(shared json.RawMessage) payloadMerger {
	if _, ok := objectMembers(shared); !ok {
		return payloadMerger{}
	}
	return payloadMerger{shared}
}

// mergePayload returns the payload of a task. If payload is an object, it is a merge patch (RFC 7396) to the shared payload. Otherwise
// mergePayload returns payload unchanged. If the result is nil, the task has the payload of the batch.
func (o payloadMerger) mergePayload(payload json.RawMessage) json.RawMessage {
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

// taskMembers lists the members of a task, for error messages.
const taskMembers = "device, payload, priority, not_before and not_after"

// taskCSVFormat returns the format of tasks as CSV, with a column for each member of their payloads.
func taskCSVFormat() csvFormat[operators.NewTask] {
	return csvFormat[operators.NewTask]{
		members:  "the members of the payload",
		newEntry: func(device string) operators.NewTask { return operators.NewTask{Device: device} },
		fields: map[string]func(*operators.NewTask, string) error{
			":priority": func(t *operators.NewTask, cell string) error {
				n, err := strconv.Atoi(cell)
				if err != nil {
					return errors.New("must be a whole number")
				}
				t.Priority = &n
				return nil
			},
			":not_before": func(t *operators.NewTask, cell string) error { return parseTimeCell(cell, &t.NotBefore) },
			":not_after":  func(t *operators.NewTask, cell string) error { return parseTimeCell(cell, &t.NotAfter) },
		},
		setMembers: func(t *operators.NewTask, object json.RawMessage) error {
			t.Payload = object
			return nil
		},
	}
}

// parseTimeCell stores the time in cell, in RFC 3339, in field.
func parseTimeCell(cell string, field **time.Time) error {
	at, err := time.Parse(time.RFC3339, cell)
	if err != nil {
		return errors.New("must be " + exampleTime)
	}
	*field = &at
	return nil
}
