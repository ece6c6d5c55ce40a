package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices/hawkbit"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxBatchBody   = 64 << 20 // bytes of a JSON body; CSV and NDJSON: BodyLimits.MaxStreamBytes
	maxPayload     = 32 << 10 // maximum payload of one task, in bytes
	maxPriority    = 1_000_000
	maxTagsInError = 200 // maximum length of the tags that an error message contains, in bytes
)

type batchStore interface {
	CreateBatch(ctx context.Context, actor string, batch store.Batch, newTasks store.NewBatchTasks) (store.Batch, error)
	Batch(ctx context.Context, id int64) (store.Batch, error)
	BatchesNamed(ctx context.Context, namePart string, filter store.BatchFilter, beforeID int64, limit int) ([]store.Batch, store.SearchBound, error)
	Batches(ctx context.Context, filter store.BatchFilter, beforeID int64, limit int) ([]store.Batch, error)
	PauseBatch(ctx context.Context, actor string, id int64, reason string) (store.Batch, error)
	ResumeBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	CancelBatch(ctx context.Context, actor string, id int64) (store.Batch, error)
	ChangeBatch(ctx context.Context, actor string, id int64, change func(*store.Batch) error) (store.Batch, error)
}

type batchOperations struct {
	ledger         batchStore
	waiters        *waiters.Notifier
	warner         policyWarner
	leaseMin       leaseMinimum
	publicURL      string // address under which devices reach this API; empty means that it is not known
	bodyLimits     BodyLimits
	spool          *spool
	duplicateTurns *fair.Shares // limits long batches with a search for duplicate tasks, which keeps each task in memory
}

func (b *batchOperations) register(r *routes) {
	create := r.describeOperation("createBatch")
	create = documentStatus[operators.BatchCreated](r, create, http.StatusOK) // the status of a dry run
	create.MaxBodyBytes = maxBatchBody
	create.BodyReadTimeout = time.Minute
	create.Middlewares = r.newMiddlewares(b.separateTasks(r))
	describeStreamedBatch(r, &create)
	registerResponse(r, create, b.create)
	registerList[operators.BatchList](r, r.describeOperation("listBatches"), b.list)
	register(r, r.describeOperation("getBatch"), b.get)
	register(r, r.describeOperation("patchBatch"), b.patch)
	register(r, r.describeOperation("pauseBatch"), b.pause)
	register(r, r.describeOperation("resumeBatch"), b.resume)
	register(r, r.describeOperation("cancelBatch"), b.cancel)
}

func (b *batchOperations) create(ctx context.Context, in *struct {
	operators.QueueMode
	Body operators.NewBatch
},
) (*createdResponse[operators.BatchCreated], error) {
	batch, err := b.readSettings(in.Body)
	if err != nil {
		return nil, err
	}
	tasks, release, err := b.readTasks(ctx, in.Body)
	if err != nil {
		return nil, err
	}
	defer release()
	return b.queueBatch(ctx, in.Body, batch, tasks, in.QueueMode)
}

// queueBatch queues newTasks as the batch, or only checks them in a dry run. request has the fields as the client sent them, and batch
// has the same fields in the form of the ledger.
func (b *batchOperations) queueBatch(ctx context.Context, request operators.NewBatch, batch store.Batch, newTasks store.NewBatchTasks, mode operators.QueueMode) (*createdResponse[operators.BatchCreated], error) {
	newTasks.DryRun, newTasks.RegisteredOnly = mode.DryRun, mode.UnknownDevices == "refuse"
	warned, err := b.warner.findWarnings(ctx, request.Limits)
	if err != nil {
		return nil, err
	}
	made, err := b.ledger.CreateBatch(ctx, operatorName(ctx), batch, newTasks)
	nobody := newTasks.Tags != nil && made.Total == 0
	switch {
	case errors.Is(err, store.ErrNoTasks) && nobody:
		return nil, newProblem(http.StatusUnprocessableEntity, codeNoTasks, noDeviceMessage(newTasks.Tags)).withCause(err)
	case err != nil:
		return nil, neverStartsProblem(err)
	case nobody: // no device has the selected tags; only a dry run succeeds then
		warned.Warnings = append(warned.Warnings, noDeviceMessage(newTasks.Tags))
	}
	warned.Warnings = append(warned.Warnings, deploymentWarnings(batch, made.WrongWire, b.publicURL)...)
	answer := operators.BatchCreated{ID: made.ID, Tasks: made.Total, WarningList: warned}
	if request.Duplicates == skipDuplicates {
		answer.Skipped = &made.Skipped
	}
	if made.Unknown.Tasks > 0 {
		answer.Unknown = &operators.UnknownTasks{Tasks: made.Unknown.Tasks, First: made.Unknown.First}
	}
	if mode.DryRun {
		answer.ID = 0
	} else {
		b.waiters.Filler.FillPool(batch.Pool)
	}
	return &createdResponse[operators.BatchCreated]{createdStatus(!mode.DryRun), answer}, nil
}

// noDeviceMessage returns the message that no device has the selected tags, and how to list devices by tag.
func noDeviceMessage(tags map[string]string) string {
	words := strings.Join(formatTagPairs(tags), ", ")
	if len(tags) > 1 {
		words = "all of " + words
	}
	if len(words) > maxTagsInError {
		words = strings.ToValidUTF8(words[:maxTagsInError], "") + "…"
	}
	return "select.tags: no registered device has " + words + "; GET /v1/devices?tag=NAME:VALUE lists those with a tag"
}

// readSettings checks the fields of a batch in a request, except its tasks, and converts them to the form of the ledger.
func (b *batchOperations) readSettings(request operators.NewBatch) (store.Batch, error) {
	if err := checkPayload(request.Payload); err != nil {
		return store.Batch{}, err
	}
	if request.LeaseMS != 0 {
		if err := b.leaseMin.checkLease("lease_ms", milliseconds(request.LeaseMS)); err != nil {
			return store.Batch{}, err
		}
	}
	if err := checkStartPeriod(request.NotBefore, request.NotAfter); err != nil {
		return store.Batch{}, err
	}
	windows, err := toStoredWindows(request.Windows)
	if err != nil {
		return store.Batch{}, err
	}
	limits, err := toStoredLimits(request.Limits)
	if err != nil {
		return store.Batch{}, err
	}
	request = request.WithDefaults()
	_, notDeployment := hawkbit.ParsePayload(request.Payload)
	return store.Batch{
		IsDeployment: notDeployment == nil,
		Name:         request.Name, Pool: request.Pool, Kind: request.Kind, Payload: nilIfNull(request.Payload),
		Priority: request.Priority, Weight: request.Weight, Lane: store.Lane(request.Lane), NotBefore: request.NotBefore, NotAfter: request.NotAfter, MaxWait: milliseconds(request.MaxWaitMS),
		MaxAttempts: request.MaxAttempts, RetryOn: request.RetryOn, RetryBackoff: milliseconds(*request.RetryBackoffMS),
		OnLost: request.OnLost, Lease: milliseconds(request.LeaseMS), MaxRun: milliseconds(request.MaxRunMS),
		Abort: toStoredAbort(request.Abort), Windows: windows, Limits: limits, FinishInside: *request.FinishInside,
	}, nil
}

func (b *batchOperations) get(ctx context.Context, in *IDPath) (operators.Batch, error) {
	found, err := b.ledger.Batch(ctx, in.ID)
	shown := toAPIBatch(found)
	shown.Payload = found.Payload // a list has no payloads, because a payload may be long
	return shown, err
}

func (b *batchOperations) list(ctx context.Context, in *struct {
	operators.BatchFilter
	NumberPage
},
) (page listPage[operators.Batch], err error) {
	if err := checkDeviceAndPoolNames("", in.Pool); err != nil {
		return page, err
	}
	before := in.afterNumber
	filter := store.BatchFilter{Lane: store.Lane(in.Lane), Pool: in.Pool, Kind: in.Kind, State: in.State}
	filter.Order = map[string]store.BatchOrder{"failed": store.ByFailures, "ended": store.ByEnd}[in.Sort]
	countSet := func(values ...string) (n int) {
		return len(slices.DeleteFunc(values, func(v string) bool { return v == "" }))
	}
	switch {
	case countSet(in.Name+in.Lane, in.Pool, in.Kind) > 1:
		return page, invalidProblem("pool, kind: not together, and neither together with name or lane")
	case countSet(in.Name+in.Lane+in.Kind, in.State, string(filter.Order)) > 1:
		return page, invalidProblem("state, sort: not together, and neither together with name, lane or kind")
	}
	if in.Name != "" {
		found, bound, err := b.ledger.BatchesNamed(ctx, in.Name, filter, before, min(in.Size, firstPartSize))
		return newPage(found, len(found) == min(in.Size, firstPartSize), toAPIBatch, func(b store.Batch) string { return formatDecimal(b.ID) }).continueAfter(bound), err
	}
	found, more, err := readInParts(in.Size, func(last *store.Batch, limit int) ([]store.Batch, error) {
		if last != nil {
			before = last.ID
		}
		return b.ledger.Batches(ctx, filter, before, limit)
	}, func(b store.Batch) int { return len(b.Payload) })
	return newPage(found, more, toAPIBatch, func(b store.Batch) string { return formatDecimal(b.ID) }), err
}

func toAPIBatch(batch store.Batch) operators.Batch {
	counts := make(map[string]int64)
	for _, state := range store.TaskStates() {
		counts[string(state)] = batch.Counts[state]
	}
	rate := endedTasksPerMinute(batch)
	return operators.Batch{
		ID: batch.ID, Name: batch.Name, Pool: batch.Pool, Kind: batch.Kind, State: batchState(batch), Condition: batchCondition(batch),
		Priority: batch.Priority, Weight: batch.Weight, Lane: string(batch.Lane), System: batch.System, NotBefore: apiTimePointer(batch.NotBefore), NotAfter: apiTimePointer(batch.NotAfter), MaxWaitMS: batch.MaxWait.Milliseconds(),
		Windows: toAPIWindows(batch.Windows), Limits: toAPIPolicies(batch.Limits), FinishInside: batch.FinishInside, OpensAt: apiTimeIfSet(batch.Opening.From), ClosesAt: apiTimeIfSet(batch.Opening.Until),
		MaxAttempts: batch.MaxAttempts, RetryOn: batch.RetryOn, RetryBackoffMS: batch.RetryBackoff.Milliseconds(), OnLost: batch.OnLost,
		LeaseMS: batch.Lease.Milliseconds(), MaxRunMS: batch.MaxRun.Milliseconds(),
		PausedBy: batch.PausedBy, PausedAt: apiTimePointer(batch.PausedAt), PauseReason: batch.PauseReason,
		Abort: (*operators.Abort)(batch.Abort), Created: apiTime(batch.CreatedAt), Total: batch.Total, Counts: counts,
		RatePerMinute: rate, ETA: expectedEnd(batch, rate),
	}
}

func (b *batchOperations) patch(ctx context.Context, in *struct {
	IDPath
	Body operators.BatchPatch
},
) (changed operators.BatchChanged, err error) {
	rules, err := b.warner.readChange(ctx, in.Body.Windows, in.Body.Limits)
	if err != nil {
		return changed, err
	}
	changed.WarningList = rules.warned
	batch, err := b.ledger.ChangeBatch(ctx, operatorName(ctx), in.ID, func(batch *store.Batch) error {
		rules.applyTo(&batch.Windows, &batch.Limits)
		return applyPatch(in.Body, batch)
	})
	changed.Batch, err = b.offerSlotsAfterChange(batch, neverStartsProblem(err))
	return changed, err
}

// applyPatch applies to batch all changes of patch except the changes of windows and limits. A new field of the patch also needs a column in
// the SQL of ChangeBatch, which ignores a field without a column.
func applyPatch(patch operators.BatchPatch, batch *store.Batch) error {
	applyChange(patch.Priority, &batch.Priority, 0)
	applyChange(patch.Weight, &batch.Weight, operators.DefaultBatchWeight)
	applyChange(patch.MaxAttempts, &batch.MaxAttempts, operators.DefaultMaxAttempts)
	applyMilliseconds(patch.MaxWaitMS, &batch.MaxWait, 0)
	applyChange(patch.Lane, (*string)(&batch.Lane), operators.DefaultLane)
	if patch.NotAfter.Present {
		batch.NotAfter = patch.NotAfter.Value
	}
	return checkStartPeriod(batch.NotBefore, batch.NotAfter)
}

func (b *batchOperations) pause(ctx context.Context, in *struct {
	IDPath
	Body *operators.PauseReason
},
) (operators.Batch, error) {
	return b.removeWaitersAfterChange(b.ledger.PauseBatch(ctx, operatorName(ctx), in.ID, pauseReasonText(in.Body)))
}

func (b *batchOperations) resume(ctx context.Context, in *IDPath) (operators.Batch, error) {
	batch, err := b.ledger.ResumeBatch(ctx, operatorName(ctx), in.ID)
	if err == nil {
		b.waiters.Offers.AdmitWaitersOfBatch(batch.Pool, batch.ID)
	}
	return b.offerSlotsAfterChange(batch, err)
}

func (b *batchOperations) cancel(ctx context.Context, in *IDPath) (operators.Batch, error) {
	return b.removeWaitersAfterChange(b.ledger.CancelBatch(ctx, operatorName(ctx), in.ID))
}

// offerSlotsAfterChange offers the free slots of the batch's pool to devices, unless the change failed. It returns the result of the change
// (changed, changeErr) in the form of the API.
func (b *batchOperations) offerSlotsAfterChange(changed store.Batch, changeErr error) (operators.Batch, error) {
	if changeErr == nil {
		b.waiters.Filler.FillPool(changed.Pool)
	}
	return toAPIBatch(changed), changeErr
}

// removeWaitersAfterChange removes the devices that wait with a task of the batch from the queue of its pool, unless the change failed. It
// returns the result of the change (changed, changeErr) in the form of the API.
func (b *batchOperations) removeWaitersAfterChange(changed store.Batch, changeErr error) (answer operators.Batch, err error) {
	if changeErr == nil {
		b.waiters.Offers.RemoveWaitersOfBatch(changed.Pool, changed.ID)
	}
	return toAPIBatch(changed), changeErr
}

func toStoredAbort(requested *operators.Abort) *store.Abort {
	if requested == nil {
		return nil
	}
	return &store.Abort{Failure: requested.Failure, Min: cmp.Or(requested.Min, 1)}
}
