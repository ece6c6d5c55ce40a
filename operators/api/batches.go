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
	maxBatchBody   = 64 << 20 // bytes; enough for about 1,000,000 device ids
	maxPayload     = 32 << 10 // maximum payload of one task, in bytes
	maxPriority    = 1_000_000
	maxTagsInError = 200 // maximum length of the tags that an error message contains, in bytes
)

type batchStore interface {
	CreateBatch(ctx context.Context, actor string, b store.Batch, q store.NewBatchTasks) (store.Batch, error)
	Batch(ctx context.Context, id int64) (store.Batch, error)
	BatchesNamed(ctx context.Context, part string, filter store.BatchFilter, before int64, limit int) ([]store.Batch, store.SearchBound, error)
	Batches(ctx context.Context, filter store.BatchFilter, before int64, limit int) ([]store.Batch, error)
	PauseBatch(ctx context.Context, actor string, id int64, reason string) (store.Batch, error)
	ResumeBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	CancelBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	ChangeBatch(ctx context.Context, actor string, id int64, change func(*store.Batch) error) (store.Batch, error)
}

// batches has the operations on batches.
type batches struct {
	ledger         batchStore
	waiters        *waiters.Notifier
	warner         limitWarner
	leaseMin       leaseMinimum
	limits         BodyLimits
	spool          *spool
	duplicateTurns *fair.Shares // limits long batches with a search for duplicate tasks, which keeps each task in memory
}

func (b *batches) register(r *routes) {
	create := withIdempotencyKey(newOperation("POST", "/v1/batches", "createBatch", "Queue tasks", roleOperator, 201))
	create = documentStatus[operators.BatchCreated](r, create, http.StatusOK) // the status of a dry run
	create.MaxBodyBytes = maxBatchBody
	create.BodyReadTimeout = time.Minute
	create.Middlewares = r.newMiddlewares(b.handleStreamed(r), b.handleLong)
	describeStreams(r, &create)
	registerResponse(r, create, b.create)
	registerList(r, newOperation("GET", "/v1/batches", "listBatches", "List batches, newest first", roleViewer, 200), b.list,
		func(p listPage[operators.Batch]) operators.BatchList {
			return operators.BatchList{Batches: p.entries, NextPageToken: p.next}
		})
	register(r, newOperation("GET", "/v1/batches/{id}", "getBatch", "Read a batch and its counts", roleViewer, 200), b.get)
	register(r, newOperation("PATCH", "/v1/batches/{id}", "patchBatch", "Change a batch; absent fields stay, null restores the default", roleOperator, 200), b.patch)
	register(r, newOperation("POST", "/v1/batches/{id}/pause", "pauseBatch", "Pause a batch: its tasks get no new grants; running tasks continue", roleOperator, 200), b.pause)
	register(r, newOperation("POST", "/v1/batches/{id}/resume", "resumeBatch", "End the pause of a batch", roleOperator, 200), b.resume)
	register(r, newOperation("POST", "/v1/batches/{id}/cancel", "cancelBatch", "Cancel a batch; devices that run one of its tasks are asked to stop", roleOperator, 200), b.cancel)
}

func (b *batches) create(ctx context.Context, in *struct {
	operators.QueueMode
	Body operators.NewBatch
},
) (*createdResponse[operators.BatchCreated], error) {
	batch, err := b.readSettings(in.Body)
	if err != nil {
		return nil, err
	}
	list := bodyListFrom(ctx)
	q, err := readQueue(in.Body, list, b.limits)
	if err != nil {
		return nil, err
	}
	if list != nil {
		leave, err := b.awaitDuplicateTurn(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return b.queueBatch(ctx, in.Body, batch, q, in.QueueMode)
}

func (b *batches) queueBatch(ctx context.Context, post operators.NewBatch, batch store.Batch, q store.NewBatchTasks, mode operators.QueueMode) (*createdResponse[operators.BatchCreated], error) {
	q.DryRun, q.RegisteredOnly = mode.DryRun, mode.UnknownDevices == "refuse"
	warned, err := b.warner.findWarnings(ctx, post.Limits)
	if err != nil {
		return nil, err
	}
	made, err := b.ledger.CreateBatch(ctx, actor(ctx), batch, q)
	nobody := q.Tags != nil && made.Total == 0
	switch {
	case errors.Is(err, store.ErrNoTasks) && nobody:
		return nil, problem(http.StatusUnprocessableEntity, codeNoTasks, noDeviceMessage(q.Tags)).withCause(err)
	case err != nil:
		return nil, neverStartsProblem(err)
	case nobody: // no device has the selected tags; only a dry run succeeds then
		warned.Warnings = append(warned.Warnings, noDeviceMessage(q.Tags))
	}
	answer := operators.BatchCreated{ID: made.ID, Tasks: made.Total, WarningList: warned}
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
	return &createdResponse[operators.BatchCreated]{createdStatus(!mode.DryRun), answer}, nil
}

// noDeviceMessage returns the message that no device has the selected tags, and how to list devices by tag.
func noDeviceMessage(tags map[string]string) string {
	words := strings.Join(tagPairs(tags), ", ")
	if len(tags) > 1 {
		words = "all of " + words
	}
	if len(words) > maxTagsInError {
		words = strings.ToValidUTF8(words[:maxTagsInError], "") + "…"
	}
	return "select.tags: no registered device has " + words + "; GET /v1/devices?tag=NAME:VALUE lists those with a tag"
}

// readSettings checks the fields of a batch, except its tasks.
func (b *batches) readSettings(in operators.NewBatch) (store.Batch, error) {
	if err := checkPayload(in.Payload); err != nil {
		return store.Batch{}, err
	}
	if in.LeaseMS != 0 {
		if err := b.leaseMin.check(milliseconds(in.LeaseMS)); err != nil {
			return store.Batch{}, err
		}
	}
	if err := checkSpan(in.NotBefore, in.NotAfter); err != nil {
		return store.Batch{}, err
	}
	windows, err := readWindows(in.Windows)
	if err != nil {
		return store.Batch{}, err
	}
	limits, err := readLimits(in.Limits)
	if err != nil {
		return store.Batch{}, err
	}
	in = in.WithDefaults()
	return store.Batch{
		Name: in.Name, Pool: in.Pool, Kind: in.Kind, Payload: nilIfNull(in.Payload),
		Priority: in.Priority, Weight: in.Weight, Lane: store.Lane(in.Lane), NotBefore: in.NotBefore, NotAfter: in.NotAfter, MaxWait: milliseconds(in.MaxWaitMS),
		MaxAttempts: in.MaxAttempts, RetryOn: in.RetryOn, RetryBackoff: milliseconds(*in.RetryBackoffMS),
		OnLost: in.OnLost, Lease: milliseconds(in.LeaseMS), MaxRun: milliseconds(in.MaxRunMS),
		Abort: abortRule(in.Abort), Windows: windows, Limits: limits, FinishInside: *in.FinishInside,
	}, nil
}

func (b *batches) get(ctx context.Context, in *IDPath) (operators.Batch, error) {
	found, err := b.ledger.Batch(ctx, in.ID)
	shown := showBatch(found)
	shown.Payload = found.Payload // lists leave it out, because it may be long
	return shown, err
}

// batchQuery is a request for a page of the batches that match a filter.
type batchQuery struct {
	operators.BatchFilter
	Page
}

func (b *batches) list(ctx context.Context, in *batchQuery) (page listPage[operators.Batch], err error) {
	before, err := in.afterNumber()
	if err == nil {
		err = checkNames("", in.Pool)
	}
	if err != nil {
		return page, err
	}
	filters := 0
	for _, given := range []string{in.Name + in.Lane, in.Pool, in.Kind} {
		if given != "" {
			filters++
		}
	}
	if filters > 1 {
		return page, invalid("pool, kind: not together, and neither together with name or lane")
	}
	filter := store.BatchFilter{Lane: store.Lane(in.Lane), Pool: in.Pool, Kind: in.Kind}
	if in.Name != "" {
		found, stretch, err := b.ledger.BatchesNamed(ctx, in.Name, filter, before, min(in.Size, firstPartSize))
		return newPage(found, len(found) == min(in.Size, firstPartSize), showBatch, func(b store.Batch) string { return decimal(b.ID) }).continueAfter(stretch), err
	}
	found, more, err := readInParts(in.Size, func(last *store.Batch, limit int) ([]store.Batch, error) {
		if last != nil {
			before = last.ID
		}
		return b.ledger.Batches(ctx, filter, before, limit)
	}, func(b store.Batch) int { return len(b.Payload) })
	return newPage(found, more, showBatch, func(b store.Batch) string { return decimal(b.ID) }), err
}

func showBatch(b store.Batch) operators.Batch {
	counts := make(map[string]int64)
	for _, state := range store.TaskStates() {
		counts[string(state)] = b.Counts[state]
	}
	rate := ratePerMinute(b)
	return operators.Batch{
		ID: b.ID, Name: b.Name, Pool: b.Pool, Kind: b.Kind, State: batchState(b), Condition: batchCondition(b),
		Priority: b.Priority, Weight: b.Weight, Lane: string(b.Lane), System: b.System, NotBefore: apiTimePointer(b.NotBefore), NotAfter: apiTimePointer(b.NotAfter), MaxWaitMS: b.MaxWait.Milliseconds(),
		Windows: showWindows(b.Windows), Limits: showLimits(b.Limits), FinishInside: b.FinishInside, OpensAt: apiTimeIfSet(b.Opening.From), ClosesAt: apiTimeIfSet(b.Opening.Until),
		MaxAttempts: b.MaxAttempts, RetryOn: b.RetryOn, RetryBackoffMS: b.RetryBackoff.Milliseconds(), OnLost: b.OnLost,
		LeaseMS: b.Lease.Milliseconds(), MaxRunMS: b.MaxRun.Milliseconds(),
		PausedBy: b.PausedBy, PausedAt: apiTimePointer(b.PausedAt), PauseReason: b.PauseReason,
		Abort: showAbort(b.Abort), Created: apiTime(b.CreatedAt), Total: b.Total, Counts: counts,
		RatePerMinute: rate, ETA: eta(b, rate),
	}
}

func (b *batches) patch(ctx context.Context, in *struct {
	IDPath
	Body operators.BatchPatch
},
) (changed operators.BatchChanged, err error) {
	rules, err := b.warner.readChange(ctx, in.Body.Windows, in.Body.Limits)
	if err != nil {
		return changed, err
	}
	changed.WarningList = rules.warned
	batch, err := b.ledger.ChangeBatch(ctx, actor(ctx), in.ID, func(batch *store.Batch) error {
		rules.apply(&batch.Windows, &batch.Limits)
		return applyPatch(in.Body, batch)
	})
	changed.Batch, err = b.offerSlots(batch, neverStartsProblem(err))
	return changed, err
}

// applyPatch applies all changes except the changes of windows and limits.
func applyPatch(p operators.BatchPatch, b *store.Batch) error {
	applyChange(p.Priority, &b.Priority, 0)
	applyChange(p.Weight, &b.Weight, operators.DefaultBatchWeight)
	applyChange(p.MaxAttempts, &b.MaxAttempts, operators.DefaultMaxAttempts)
	wait := b.MaxWait.Milliseconds()
	applyChange(p.MaxWaitMS, &wait, 0)
	b.MaxWait = milliseconds(wait)
	lane := string(b.Lane)
	applyChange(p.Lane, &lane, operators.DefaultLane)
	b.Lane = store.Lane(lane)
	if p.NotAfter.Present {
		b.NotAfter = p.NotAfter.Value
	}
	return checkSpan(b.NotBefore, b.NotAfter)
}

func (b *batches) pause(ctx context.Context, in *struct {
	IDPath
	Body *operators.PauseReason
},
) (operators.Batch, error) {
	return b.dequeue(b.ledger.PauseBatch(ctx, actor(ctx), in.ID, reasonOf(in.Body)))
}

func (b *batches) resume(ctx context.Context, in *IDPath) (operators.Batch, error) {
	return b.offerSlots(b.ledger.ResumeBatch(ctx, actor(ctx), in.ID))
}

func (b *batches) cancel(ctx context.Context, in *IDPath) (operators.Batch, error) {
	return b.dequeue(b.ledger.CancelBatch(ctx, actor(ctx), in.ID))
}

// offerSlots offers the free slots of the batch's pool to devices, after a change that may let tasks of the
// batch start. It returns the batch.
func (b *batches) offerSlots(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.Filler.Fill(batch.Pool)
	}
	return showBatch(batch), err
}

// dequeue removes the devices that wait with a task of the batch from the queue of its pool, after a
// change that prevents starts. It returns the batch.
func (b *batches) dequeue(batch store.Batch, err error) (operators.Batch, error) {
	if err == nil {
		b.waiters.Offers.RemoveBatch(batch.Pool, batch.ID)
	}
	return showBatch(batch), err
}

const (
	rateSpan    = 5 * time.Minute  // the length of the period whose ended tasks Batch.Recent counts
	minRateSpan = 10 * time.Second // minimum period for ratePerMinute
	maxETA      = 10 * 365 * 24 * time.Hour
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
	state, poolState := batchState(b), b.PoolSettings
	lease := cmp.Or(b.Lease, poolState.Lease)
	switch {
	case state != "running":
		return state
	case poolState.Paused || poolState.Capacity == 0:
		return "held_up"
	case decision.Closed(b.Opening, lease, b.FinishInside, b.ReadAt), decision.Closed(poolState.Opening, lease, b.FinishInside, b.ReadAt):
		return "scheduled"
	}
	return state
}

func openTasks(b store.Batch) int64 { return b.Counts[store.Pending] + b.Counts[store.Dispatched] }

// ratePerMinute returns the number of tasks of the batch that ended per minute in the last rateSpan, or nil if the batch
// has not begun.
func ratePerMinute(b store.Batch) *float64 {
	began := earliestStart(b)
	if b.ReadAt.Before(began) {
		return nil
	}
	rate := float64(b.Recent) / min(max(b.ReadAt.Sub(began), minRateSpan), rateSpan).Minutes()
	return &rate
}

// earliestStart returns the earliest time at which tasks of the batch could start: its not_before,
// or its creation if that was later.
func earliestStart(b store.Batch) time.Time {
	if b.NotBefore != nil && b.NotBefore.After(b.CreatedAt) {
		return *b.NotBefore
	}
	return b.CreatedAt
}

// eta returns the expected time at which the last task of the batch ends, if tasks continue to end
// at this rate. It returns nil if the time is unknown.
func eta(b store.Batch, rate *float64) *operators.Time {
	if rate == nil || *rate == 0 || batchCondition(b) != "running" {
		return nil
	}
	left := math.Round(float64(openTasks(b)) / *rate * float64(time.Minute))
	if left > float64(maxETA) {
		return nil
	}
	at := b.ReadAt.Add(time.Duration(left))
	if o := b.Opening; !o.Until.IsZero() && (o.From.After(b.ReadAt) || o.Until.Before(at)) { // the batch will have to wait for a window
		return nil
	}
	return apiTimeIfSet(at)
}

// abortRule converts the abort rule of a request to the stored form. It returns nil if the request
// has no abort rule.
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
