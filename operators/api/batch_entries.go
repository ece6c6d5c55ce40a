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

// queueOf is what the request asks for. list is that of a long body; nil: it is in the request.
func queueOf(in operators.NewBatch, list *listed, limits Limits) (store.Queue, error) {
	kinds := 0
	for _, given := range []bool{len(in.Devices) > 0, len(in.Tasks) > 0, list != nil && list.name != "", in.Select != nil} {
		if given {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return store.Queue{}, oneOfThem()
	case in.Select != nil:
		return store.Queue{Tags: in.Select.Tags}, nil
	case list != nil:
		return store.Queue{Tasks: checked(in, entriesOf(list.name, list.entries()), limits)}, nil
	}
	name, tasks := "tasks", in.Tasks
	for _, device := range in.Devices {
		name, tasks = "devices", append(tasks, operators.NewTask{Device: device})
	}
	return store.Queue{Tasks: checked(in, entriesOf(name, func(yield func(operators.NewTask, error) bool) {
		for _, task := range tasks {
			if !yield(task, nil) {
				return
			}
		}
	}), limits)}, nil
}

// numbered are the entries of a batch, and how people are told of one.
type numbered struct {
	entries iter.Seq2[operators.NewTask, error]
	form    string                          // of a position
	number  func(i int) int                 // of the entry that was read last
	bad     func(number int, e error) error // nil for none
}

// entriesOf are those of a JSON list.
func entriesOf(list string, entries iter.Seq2[operators.NewTask, error]) numbered {
	return numbered{entries, list + "[%d]", func(i int) int { return i }, func(i int, err error) error { return badEntry(list, i, err) }}
}

// checked checks and yields the tasks of a batch; a bad one refuses all.
func checked(in operators.NewBatch, list numbered, limits Limits) iter.Seq2[store.NewTask, error] {
	shared, twice := newOverlay(in.Payload), newDuplicates(in)
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
				err = twice.check(&task, list.form, list.number(i))
			}
			if !yield(task, list.bad(list.number(i), err)) {
				return
			}
			i++
		}
	}
}

func badEntry(list string, i int, err error) error {
	if err == nil {
		return nil
	}
	if unknownField(err) {
		return problem(http.StatusBadRequest, codeUnknownField, fmt.Sprintf("%s[%d]: %v", list, i, err))
	}
	return problem(http.StatusUnprocessableEntity, codeOfEntry(err, codeInvalidField), fmt.Sprintf("%s[%d]: %v", list, i, err))
}

func checkPayload(payload json.RawMessage) error {
	if len(payload) > maxPayload {
		return problem(http.StatusUnprocessableEntity, codePayloadTooLarge, fmt.Sprintf("payload: at most %d bytes", maxPayload))
	}
	return nil
}

// present makes null and absent the same.
func present(r json.RawMessage) json.RawMessage {
	if string(r) == "null" {
		return nil
	}
	return r
}

// newTask checks one entry.
func newTask(t operators.NewTask, in operators.NewBatch, shared overlay) (store.NewTask, error) {
	if _, err := devices.ParseID(t.Device); err != nil {
		return store.NewTask{}, err
	}
	if t.Priority != nil && (*t.Priority < -maxPriority || *t.Priority > maxPriority) {
		return store.NewTask{}, fmt.Errorf("priority: between %d and %d", -maxPriority, maxPriority)
	}
	payload := shared.over(present(t.Payload))
	if err := checkPayload(payload); err != nil {
		return store.NewTask{}, err
	}
	if err := checkTimes(t, in); err != nil {
		return store.NewTask{}, err
	}
	return store.NewTask{Device: t.Device, Payload: payload, Priority: t.Priority, NotBefore: t.NotBefore, NotAfter: t.NotAfter}, nil
}

// checkTimes refuses a task that could never start by its own times and those of its batch.
func checkTimes(t operators.NewTask, in operators.NewBatch) error {
	if err := checkYears(t.NotBefore, t.NotAfter); err != nil {
		return err
	}
	switch {
	case never(t.NotBefore, t.NotAfter):
		return errors.New("not_after: must be later than not_before")
	case never(t.NotBefore, in.NotAfter):
		return errors.New("not_before: must be before the not_after of the batch")
	case never(in.NotBefore, t.NotAfter):
		return errors.New("not_after: must be later than the not_before of the batch")
	}
	return nil
}

// Policies for equal tasks of one batch.
const (
	refuseDuplicates = "refuse"
	skipDuplicates   = "skip"
)

// errDuplicate: a task is equal to one before it.
var errDuplicate = errors.New("is the same task")

// duplicates finds the equal tasks of one batch; nil: they are allowed.
type duplicates struct {
	refuse  bool
	kind    string
	payload json.RawMessage // of tasks without their own
	seen    *limits.Repeats
}

func newDuplicates(in operators.NewBatch) *duplicates {
	if in.Duplicates != refuseDuplicates && in.Duplicates != skipDuplicates {
		return nil
	}
	return &duplicates{refuse: in.Duplicates == refuseDuplicates, kind: in.Kind, payload: present(in.Payload), seen: limits.NewRepeats()}
}

// turnOfRepeats lets one long batch at a time look for equal tasks.
func (b *batches) turnOfRepeats(ctx context.Context, in operators.NewBatch) (leave func(), err error) {
	if newDuplicates(in) == nil {
		return func() {}, nil
	}
	if leave, err = await(ctx, b.repeats); err != nil {
		return nil, fmt.Errorf("waiting for another batch whose duplicates are found: %w", err)
	}
	return leave, nil
}

// check refuses a task that is equal to one before it, or marks it to be
// skipped. position is where it stands, for people.
func (d *duplicates) check(t *store.NewTask, position string, at int) error {
	if d == nil {
		return nil
	}
	facts := limits.Facts{Device: t.Device, Kind: d.kind, Payload: t.Payload}
	if t.Payload == nil {
		facts.Payload = d.payload
	}
	first, again := d.seen.Earlier(facts, int32(at)) // no body has so many entries
	t.Repeated = again
	if again && d.refuse {
		return fmt.Errorf("%w as "+position+": equal in device (%s), kind and payload", errDuplicate, first, t.Device)
	}
	return nil
}

// codeOfEntry is the code for what is wrong with one entry of a list.
func codeOfEntry(err error, usual string) string {
	if errors.Is(err, errDuplicate) {
		return codeDuplicateTask
	}
	return usual
}

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
