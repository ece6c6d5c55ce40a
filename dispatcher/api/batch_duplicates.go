package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

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
