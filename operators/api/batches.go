package api

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxBatchBody = 64 << 20 // bytes; enough for about 1,000,000 device ids
	maxPayload   = 32 << 10 // maximum payload of one task, in bytes
	maxPriority  = 1_000_000
	maxTagWords  = 200 // maximum length of the tags in an error, in bytes
)

type batchStore interface {
	CreateBatch(ctx context.Context, actor string, b store.Batch, q store.Queue) (store.Batch, error)
	Batch(ctx context.Context, id int64) (store.Batch, error)
	BatchesNamed(ctx context.Context, part string, filter store.BatchFilter, before int64, limit int) ([]store.Batch, store.Stretch, error)
	Batches(ctx context.Context, filter store.BatchFilter, before int64, limit int) ([]store.Batch, error)
	PauseBatch(ctx context.Context, actor string, id int64, reason string) (store.Batch, error)
	ResumeBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	CancelBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	ChangeBatch(ctx context.Context, actor string, id int64, change func(*store.Batch) error) (store.Batch, error)
}

// batches has the operations on batches.
type batches struct {
	ledger  batchStore
	waiters *waiters.Notifier
	warn    warnings
	least   leastLease
	limits  Limits
	spool   *spool
	repeats *fair.Shares // limits long batches with a search for duplicate tasks, which keeps each task in memory
}

func (b *batches) register(r *routes) {
	create := creating(operation("POST", "/v1/batches", "createBatch", "Queue tasks", roleOperator, 201))
	create = also[operators.BatchCreated](r, create, http.StatusOK) // the status of a dry run
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
	nobody := q.Tags != nil && made.Total == 0
	switch {
	case errors.Is(err, store.ErrNoTasks) && nobody:
		return nil, problem(http.StatusUnprocessableEntity, codeNoTasks, noDeviceHas(q.Tags)).because(err)
	case err != nil:
		return nil, neverStarts(err)
	case nobody: // only in a dry run
		warned.Warnings = append(warned.Warnings, noDeviceHas(q.Tags))
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
		b.waiters.Filler.Fill(batch.Pool)
	}
	return &created[operators.BatchCreated]{createdStatus(!mode.DryRun), answer}, nil
}

// noDeviceHas returns the message that no device has the selected tags, and how to list devices by tag.
func noDeviceHas(tags map[string]string) string {
	words := strings.Join(tagWords(tags), ", ")
	if len(tags) > 1 {
		words = "all of " + words
	}
	if len(words) > maxTagWords {
		words = strings.ToValidUTF8(words[:maxTagWords], "") + "…"
	}
	return "select.tags: no registered device has " + words + "; GET /v1/devices?tag=NAME:VALUE lists those with a tag"
}

// read checks the fields of a batch, except its tasks.
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
		Priority: in.Priority, Weight: cmp.Or(in.Weight, defaultWeight), Lane: store.Lane(in.Lane), NotBefore: in.NotBefore, NotAfter: in.NotAfter, MaxWait: milliseconds(in.MaxWaitMS),
		MaxAttempts: cmp.Or(in.MaxAttempts, defaultMaxAttempts), RetryOn: retryOn, RetryBackoff: milliseconds(backoff),
		OnLost: cmp.Or(in.OnLost, "retry"), Lease: milliseconds(in.LeaseMS), MaxRun: milliseconds(in.MaxRunMS),
		Abort: abortRule(in.Abort), Windows: opens, Limits: limited, FinishInside: in.FinishInside == nil || *in.FinishInside,
	}, nil
}

func (b *batches) get(ctx context.Context, in *Numbered) (operators.Batch, error) {
	found, err := b.ledger.Batch(ctx, in.ID)
	shown := showBatch(found)
	shown.Payload = found.Payload // lists leave it out, because it may be long
	return shown, err
}

// batchPage is a request for a page of the batches that match a filter.
type batchPage struct {
	operators.BatchFilter
	Page
}

func (b *batches) list(ctx context.Context, in *batchPage) (page pageOf[operators.Batch], err error) {
	before, err := in.afterNumber()
	if err == nil {
		err = checkNames("", in.Pool)
	}
	if err != nil {
		return page, err
	}
	others := 0
	for _, given := range []string{in.Name + in.Lane, in.Pool, in.Kind} {
		if given != "" {
			others++
		}
	}
	if others > 1 {
		return page, invalid("pool, kind: one of them, and neither with name or lane")
	}
	filter := store.BatchFilter{Lane: store.Lane(in.Lane), Pool: in.Pool, Kind: in.Kind}
	if in.Name != "" {
		found, stretch, err := b.ledger.BatchesNamed(ctx, in.Name, filter, before, min(in.Size, firstPart))
		return showPage(found, len(found) == min(in.Size, firstPart), showBatch, func(b store.Batch) string { return number(b.ID) }).behind(stretch), err
	}
	found, more, err := inParts(in.Size, func(last *store.Batch, limit int) ([]store.Batch, error) {
		if last != nil {
			before = last.ID
		}
		return b.ledger.Batches(ctx, filter, before, limit)
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
		ID: b.ID, Name: b.Name, Pool: b.Pool, Kind: b.Kind, State: batchState(b), Condition: batchCondition(b),
		Priority: b.Priority, Weight: b.Weight, Lane: string(b.Lane), System: b.System, NotBefore: stampPointer(b.NotBefore), NotAfter: stampPointer(b.NotAfter), MaxWaitMS: b.MaxWait.Milliseconds(),
		Windows: showWindows(b.Windows), Limits: showLimits(b.Limits), FinishInside: b.FinishInside, OpensAt: stampSet(b.Opening.From), ClosesAt: stampSet(b.Opening.Until),
		MaxAttempts: b.MaxAttempts, RetryOn: b.RetryOn, RetryBackoffMS: b.RetryBackoff.Milliseconds(), OnLost: b.OnLost,
		LeaseMS: b.Lease.Milliseconds(), MaxRunMS: b.MaxRun.Milliseconds(),
		PausedBy: b.PausedBy, PausedAt: stampPointer(b.PausedAt), PauseReason: b.PauseReason,
		Abort: showAbort(b.Abort), Created: stamp(b.CreatedAt), Total: b.Total, Counts: counts,
		RatePerMinute: rate, ETA: eta(b, rate),
	}
}

// Defaults of fields that a request omits or a patch sets to null.
const (
	defaultWeight      = 1
	defaultMaxAttempts = 3
)

func (b *batches) patch(ctx context.Context, in *struct {
	Numbered
	Body operators.BatchPatch
},
) (changed operators.BatchChanged, err error) {
	rules, err := b.warn.readChange(ctx, in.Body.Windows, in.Body.Limits)
	if err != nil {
		return changed, err
	}
	changed.Warned = rules.warned
	batch, err := b.ledger.ChangeBatch(ctx, actor(ctx), in.ID, func(batch *store.Batch) error {
		rules.apply(&batch.Windows, &batch.Limits)
		return applyPatch(in.Body, batch)
	})
	changed.Batch, err = b.started(batch, neverStarts(err))
	return changed, err
}

// applyPatch applies all changes except the changes of windows and limits.
func applyPatch(p operators.BatchPatch, b *store.Batch) error {
	apply(p.Priority, &b.Priority, 0)
	apply(p.Weight, &b.Weight, defaultWeight)
	apply(p.MaxAttempts, &b.MaxAttempts, defaultMaxAttempts)
	wait := b.MaxWait.Milliseconds()
	apply(p.MaxWaitMS, &wait, 0)
	b.MaxWait = milliseconds(wait)
	lane := string(b.Lane)
	apply(p.Lane, &lane, string(store.LaneNormal))
	b.Lane = store.Lane(lane)
	if p.NotAfter.Said {
		b.NotAfter = p.NotAfter.To
	}
	return checkSpan(b.NotBefore, b.NotAfter)
}

func (b *batches) pause(ctx context.Context, in *struct {
	Numbered
	Body *operators.PauseReason
},
) (operators.Batch, error) {
	return b.stopped(b.ledger.PauseBatch(ctx, actor(ctx), in.ID, reasonOf(in.Body)))
}

func (b *batches) resume(ctx context.Context, in *Numbered) (operators.Batch, error) {
	return b.started(b.ledger.ResumeBatch(ctx, actor(ctx), in.ID))
}

func (b *batches) cancel(ctx context.Context, in *Numbered) (operators.Batch, error) {
	return b.stopped(b.ledger.CancelBatch(ctx, actor(ctx), in.ID))
}

// started offers free slots to the batch after a change that may let its tasks start, and returns the batch.
func (b *batches) started(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.Filler.Fill(batch.Pool)
	}
	return showBatch(batch), err
}

// stopped removes the batch from the queue after a change that prevents starts, and returns the batch.
func (b *batches) stopped(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.Offers.RemoveBatch(batch.Pool, batch.ID)
	}
	return showBatch(batch), err
}

const (
	rateSpan = 5 * time.Minute  // the period that Batch.Recent of the ledger covers
	shortest = 10 * time.Second // minimum period for a rate
	etaMax   = 10 * 365 * 24 * time.Hour
)

// batchState derives the state of a batch from its counts: a batch has ended when none of its tasks is open.
func batchState(b store.Batch) string {
	open := openTasks(b) > 0
	switch {
	case b.CancelledAt != nil && open:
		return "cancelling"
	case b.CancelledAt != nil:
		return "cancelled"
	case !open:
		return "finished"
	case b.Paused:
		return "paused"
	case b.NotBefore != nil && b.ReadAt.Before(*b.NotBefore):
		return "scheduled"
	}
	return "running"
}

// batchCondition returns the state of a batch. If the state is running, the condition also depends on the windows of the
// batch and on its pool.
func batchCondition(b store.Batch) string {
	state, around := batchState(b), b.Around
	lease := cmp.Or(b.Lease, around.Lease)
	switch {
	case state != "running":
		return state
	case around.Paused || around.Capacity == 0:
		return "held_up"
	case decision.Closed(b.Opening, lease, b.FinishInside, b.ReadAt), decision.Closed(around.Opening, lease, b.FinishInside, b.ReadAt):
		return "scheduled"
	}
	return state
}

func openTasks(b store.Batch) int64 { return b.Counts[store.Pending] + b.Counts[store.Dispatched] }

// ratePerMinute returns the number of tasks of the batch that ended per minute in the last rateSpan, or nil if the batch
// has not begun.
func ratePerMinute(b store.Batch) *float64 {
	began := began(b)
	if b.ReadAt.Before(began) {
		return nil
	}
	rate := float64(b.Recent) / min(max(b.ReadAt.Sub(began), shortest), rateSpan).Minutes()
	return &rate
}

// began returns the earliest time at which tasks of the batch could start.
func began(b store.Batch) time.Time {
	if b.NotBefore != nil && b.NotBefore.After(b.CreatedAt) {
		return *b.NotBefore
	}
	return b.CreatedAt
}

// eta returns the time when the last task ends at this rate, or nil if it is unknown.
func eta(b store.Batch, rate *float64) *operators.Time {
	if rate == nil || *rate == 0 || batchCondition(b) != "running" {
		return nil
	}
	left := math.Round(float64(openTasks(b)) / *rate * float64(time.Minute))
	if left > float64(etaMax) {
		return nil
	}
	at := b.ReadAt.Add(time.Duration(left))
	if o := b.Opening; !o.Until.IsZero() && (o.From.After(b.ReadAt) || o.Until.Before(at)) { // the batch will have to wait for a window
		return nil
	}
	return stampSet(at)
}

// abortRule converts the rule of a request, or returns nil if there is no rule.
func abortRule(a *operators.Abort) *store.Abort {
	if a == nil {
		return nil
	}
	return &store.Abort{Failure: a.Failure, Min: cmp.Or(a.Min, 1)}
}

func showAbort(rule *store.Abort) *operators.Abort {
	if rule == nil {
		return nil
	}
	return &operators.Abort{Failure: rule.Failure, Min: rule.Min}
}
