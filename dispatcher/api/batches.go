package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxBatchBody = 64 << 20 // bytes; about 1,000,000 device ids
	maxPayload   = 32 << 10 // bytes of one task's payload
	maxPriority  = 1_000_000
)

type batchStore interface {
	CreateBatch(ctx context.Context, actor string, b store.Batch, q store.Queue) (store.Batch, error)
	Batch(ctx context.Context, id int64) (store.Batch, error)
	Batches(ctx context.Context, before int64, limit int) ([]store.Batch, error)
	PauseBatch(ctx context.Context, actor string, id int64, reason string) (store.Batch, error)
	ResumeBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	CancelBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	ChangeBatch(ctx context.Context, actor string, id int64, change func(*store.Batch) error) (store.Batch, error)
}

// batches are the operations on batches.
type batches struct {
	ledger  batchStore
	waiters *waiters.Notifier
	warn    warnings
	least   leastLease
	limits  Limits
	spool   *spool
	repeats *fair.Shares // long batches of which equal tasks are found: each task is remembered
}

func (b *batches) register(r *routes) {
	create := creating(operation("POST", "/v1/batches", "createBatch", "Queue tasks", roleOperator, 201))
	create = also[operators.BatchCreated](r, create, http.StatusOK) // a dry run
	create.MaxBodyBytes = maxBatchBody
	create.BodyReadTimeout = time.Minute
	create.Middlewares = r.steps(b.streamed(r), b.long)
	describeStreams(r, &create)
	registerAnswer(r, create, b.create)
	registerList(r, operation("GET", "/v1/batches", "listBatches", "List batches, newest first", roleViewer, 200), b.list,
		func(p pageOf[operators.Batch]) operators.BatchList {
			return operators.BatchList{Batches: p.entries, NextPageToken: p.next}
		})
	register(r, operation("GET", "/v1/batches/{id}", "getBatch", "Read a batch and its counts", roleViewer, 200), b.get)
	register(r, operation("PATCH", "/v1/batches/{id}", "patchBatch", "Change a batch; absent fields stay, null asks for the default", roleOperator, 200), b.patch)
	register(r, operation("POST", "/v1/batches/{id}/pause", "pauseBatch", "Grant nothing more of a batch; what runs goes on", roleOperator, 200), b.pause)
	register(r, operation("POST", "/v1/batches/{id}/resume", "resumeBatch", "End the pause of a batch", roleOperator, 200), b.resume)
	register(r, operation("POST", "/v1/batches/{id}/cancel", "cancelBatch", "End a batch; devices that run a task of it are told to stop", roleOperator, 200), b.cancel)
}

func (b *batches) create(ctx context.Context, in *struct {
	operators.QueueMode
	Body operators.NewBatch
},
) (*created[operators.BatchCreated], error) {
	batch, err := b.read(in.Body)
	if err != nil {
		return nil, err
	}
	list := listedIn(ctx)
	q, err := queueOf(in.Body, list, b.limits)
	if err != nil {
		return nil, err
	}
	if list != nil {
		leave, err := b.turnOfRepeats(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return b.queue(ctx, in.Body, batch, q, in.QueueMode)
}

func (b *batches) queue(ctx context.Context, post operators.NewBatch, batch store.Batch, q store.Queue, mode operators.QueueMode) (*created[operators.BatchCreated], error) {
	q.DryRun, q.KnownOnly = mode.DryRun, mode.UnknownDevices == "refuse"
	warned, err := b.warn.of(ctx, post.Limits)
	if err != nil {
		return nil, err
	}
	made, err := b.ledger.CreateBatch(ctx, actor(ctx), batch, q)
	if err != nil {
		return nil, neverStarts(err)
	}
	answer := operators.BatchCreated{ID: made.ID, Tasks: made.Total, Warned: warned}
	if post.Duplicates == skipDuplicates {
		answer.Skipped = &made.Skipped
	}
	if made.Unknown.Tasks > 0 {
		answer.Unknown = &operators.UnknownTasks{Tasks: made.Unknown.Tasks, First: made.Unknown.First}
	}
	if mode.DryRun {
		answer.ID = 0
	} else {
		b.waiters.Fill(batch.Pool)
	}
	return &created[operators.BatchCreated]{createdStatus(!mode.DryRun), answer}, nil
}

// read checks the fields of a batch, all but its tasks.
func (b *batches) read(in operators.NewBatch) (store.Batch, error) {
	if err := checkPayload(in.Payload); err != nil {
		return store.Batch{}, err
	}
	if in.LeaseMS != 0 {
		if err := b.least.check(milliseconds(in.LeaseMS)); err != nil {
			return store.Batch{}, err
		}
	}
	if err := checkSpan(in.NotBefore, in.NotAfter); err != nil {
		return store.Batch{}, err
	}
	opens, err := readWindows(in.Windows)
	if err != nil {
		return store.Batch{}, err
	}
	limited, err := readLimits(in.Limits)
	if err != nil {
		return store.Batch{}, err
	}
	backoff := int64(10_000)
	if in.RetryBackoffMS != nil {
		backoff = *in.RetryBackoffMS
	}
	retryOn := in.RetryOn
	if len(retryOn) == 0 {
		retryOn = []string{string(store.Failed), string(store.TimedOut)}
	}
	return store.Batch{
		Name: in.Name, Pool: in.Pool, Kind: in.Kind, Payload: present(in.Payload),
		Priority: in.Priority, Weight: cmp.Or(in.Weight, defaultWeight), NotBefore: in.NotBefore, NotAfter: in.NotAfter,
		MaxAttempts: cmp.Or(in.MaxAttempts, defaultMaxAttempts), RetryOn: retryOn, RetryBackoff: milliseconds(backoff),
		OnLost: cmp.Or(in.OnLost, "retry"), Lease: milliseconds(in.LeaseMS), MaxRun: milliseconds(in.MaxRunMS),
		Abort: abortRule(in.Abort), Windows: opens, Limits: limited, FinishInside: in.FinishInside == nil || *in.FinishInside,
	}, nil
}

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
				task, err = newTask(entry, shared)
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

func (b *batches) get(ctx context.Context, in *Numbered) (operators.Batch, error) {
	found, err := b.ledger.Batch(ctx, in.ID)
	return showBatch(found), err
}

func (b *batches) list(ctx context.Context, in *Page) (page pageOf[operators.Batch], err error) {
	before, err := in.afterNumber()
	if err != nil {
		return page, err
	}
	found, more, err := inParts(in.Size, func(last *store.Batch, limit int) ([]store.Batch, error) {
		if last != nil {
			before = last.ID
		}
		return b.ledger.Batches(ctx, before, limit)
	}, func(b store.Batch) int { return len(b.Payload) })
	return showPage(found, more, showBatch, func(b store.Batch) string { return number(b.ID) }), err
}

func showBatch(b store.Batch) operators.Batch {
	counts := make(map[string]int64)
	for _, state := range store.TaskStates() {
		counts[string(state)] = b.Counts[state]
	}
	rate := ratePerMinute(b)
	return operators.Batch{
		ID: b.ID, Name: b.Name, Pool: b.Pool, Kind: b.Kind, State: batchState(b),
		Priority: b.Priority, Weight: b.Weight, NotBefore: stampPointer(b.NotBefore), NotAfter: stampPointer(b.NotAfter),
		Windows: showWindows(b.Windows), Limits: showLimits(b.Limits), FinishInside: b.FinishInside, OpensAt: stampSet(b.Opening.From), ClosesAt: stampSet(b.Opening.Until),
		MaxAttempts: b.MaxAttempts, RetryOn: b.RetryOn, RetryBackoffMS: b.RetryBackoff.Milliseconds(), OnLost: b.OnLost,
		LeaseMS: b.Lease.Milliseconds(), MaxRunMS: b.MaxRun.Milliseconds(),
		PausedBy: b.PausedBy, PausedAt: stampPointer(b.PausedAt), PauseReason: b.PauseReason,
		Abort: showAbort(b.Abort), Created: stamp(b.CreatedAt), Total: b.Total, Counts: counts,
		RatePerMinute: rate, ETA: eta(b, rate),
	}
}
