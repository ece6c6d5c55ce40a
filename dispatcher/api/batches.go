package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/limits"
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

type batchPost struct {
	Name           string          `json:"name,omitempty" maxLength:"200"`
	Pool           string          `json:"pool" minLength:"1" maxLength:"64"`
	Kind           string          `json:"kind,omitempty" maxLength:"64" doc:"What the device is to do; yours to define"`
	Payload        raw             `json:"payload,omitempty" doc:"Shared by all tasks; a task's own object is a merge patch (RFC 7396) to it; together at most 32 KiB"`
	Priority       int             `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000" doc:"Higher first"`
	Weight         int             `json:"weight,omitempty" minimum:"1" maximum:"1000" default:"1" doc:"Share of the pool's places, among its batches with open work"`
	NotBefore      *time.Time      `json:"not_before,omitempty" nullable:"true"`
	NotAfter       *time.Time      `json:"not_after,omitempty" nullable:"true" doc:"Pending tasks expire then"`
	Windows        []windowBody    `json:"windows,omitempty" nullable:"true" doc:"When tasks may start; none: always"`
	Limits         []limits.Policy `json:"limits,omitempty" nullable:"true" doc:"How often its tasks may start, beside what its pool says"`
	FinishInside   *bool           `json:"finish_inside,omitempty" default:"true" doc:"Nothing starts with less than its lease left of a window, its own or its pool's"`
	MaxAttempts    int             `json:"max_attempts,omitempty" minimum:"1" maximum:"100" default:"3"`
	RetryOn        []string        `json:"retry_on,omitempty" nullable:"true" enum:"failed,timed_out" doc:"Causes that are retried; default both, also when empty: max_attempts 1 retries nothing"`
	RetryBackoffMS *int64          `json:"retry_backoff_ms,omitempty" minimum:"0" maximum:"86400000" default:"10000" doc:"Before the second attempt; doubles, jittered, at most an hour or this itself"`
	OnLost         string          `json:"on_lost,omitempty" enum:"retry,fail" default:"retry" doc:"When a lease lapsed"`
	LeaseMS        int64           `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" doc:"Default: the pool's"`
	MaxRunMS       int64           `json:"max_run_ms,omitempty" minimum:"1" maximum:"604800000" doc:"Renewals end there; default an hour"`
	Abort          *abortBody      `json:"abort,omitempty" doc:"Pauses the batch when too much of it fails"`
	Duplicates     string          `json:"duplicates,omitempty" enum:"allow,refuse,skip" default:"allow" doc:"Tasks of this batch that are equal in device, kind and payload, JSON by its content: all are queued, or the batch is refused, or only the first of them is queued"`
	Devices        []string        `json:"devices,omitempty" nullable:"true" doc:"One task for each; or tasks, or select"`
	Tasks          []batchTask     `json:"tasks,omitempty" nullable:"true" doc:"Tasks with payloads of their own; or devices, or select"`
	Select         *selection      `json:"select,omitempty" doc:"One task for each device that has all of the tags now; or devices, or tasks"`
}

type selection struct {
	Tags map[string]string `json:"tags" minProperties:"1" maxProperties:"64"`
}

type abortBody struct {
	Failure float64 `json:"failure" exclusiveMinimum:"0" maximum:"1" doc:"Share of failed and timed_out among the tasks that were tried"`
	Min     int64   `json:"min,omitempty" minimum:"1" maximum:"9007199254740991" default:"1" doc:"Tasks that were tried before the rule holds; counted anew after a resume"`
}

type batchTask struct {
	Device   string `json:"device"`
	Payload  raw    `json:"payload,omitempty"`
	Priority *int   `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000"` // maxPriority
}

type batchCreated struct {
	ID    int64 `json:"id" doc:"0 after a dry run"`
	Tasks int64 `json:"tasks"`

	Skipped *int64        `json:"skipped,omitempty" doc:"With duplicates=skip: tasks that were not queued"`
	Unknown *unknownTasks `json:"unknown,omitempty" doc:"Tasks whose devices are not registered; absent: none"`
	Warned
}

type unknownTasks struct {
	Tasks int64  `json:"tasks"`
	First string `json:"first" doc:"The device of the first of them"`
}

// BatchBody is a batch on the wire.
type BatchBody struct {
	ID             int64            `json:"id"`
	Name           string           `json:"name"`
	Pool           string           `json:"pool"`
	Kind           string           `json:"kind"`
	State          string           `json:"state" enum:"scheduled,running,paused,cancelling,finished,cancelled"`
	Priority       int              `json:"priority"`
	Weight         int              `json:"weight"`
	NotBefore      *timestamp       `json:"not_before" nullable:"true"`
	NotAfter       *timestamp       `json:"not_after" nullable:"true"`
	Windows        []windowBody     `json:"windows"`
	Limits         []limits.Policy  `json:"limits"`
	FinishInside   bool             `json:"finish_inside"`
	OpensAt        *timestamp       `json:"opens_at" nullable:"true" doc:"Of the opening of its windows that lasts, or the next; null: always open"`
	ClosesAt       *timestamp       `json:"closes_at" nullable:"true"`
	MaxAttempts    int              `json:"max_attempts"`
	RetryOn        []string         `json:"retry_on"`
	RetryBackoffMS int64            `json:"retry_backoff_ms"`
	OnLost         string           `json:"on_lost"`
	LeaseMS        int64            `json:"lease_ms" doc:"0: the pool's"`
	MaxRunMS       int64            `json:"max_run_ms" doc:"0: an hour"`
	Abort          *abortBody       `json:"abort,omitempty"`
	PausedBy       string           `json:"paused_by" doc:"Empty: not paused"`
	PausedAt       *timestamp       `json:"paused_at" nullable:"true"`
	PauseReason    string           `json:"pause_reason"`
	Created        timestamp        `json:"created_at"`
	Total          int64            `json:"total"`
	Counts         map[string]int64 `json:"counts" doc:"Tasks by state; they add up to total"`
	RatePerMinute  *float64         `json:"rate_per_minute" nullable:"true" doc:"Tasks that were tried and came to an end, over the last 5 min or since it began; null: it has not begun"`
	ETA            *timestamp       `json:"eta" nullable:"true" doc:"When its last task ends at this rate; null: unknown"`
}

type batchList struct {
	Batches       []BatchBody `json:"batches"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

// BatchPath names a batch.
type BatchPath struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerBatches(operations huma.API) {
	create := creating(operation("POST", "/v1/batches", "createBatch", "Queue tasks", roleOperator, 201))
	create = also[batchCreated](operations, create, http.StatusOK) // a dry run
	create.MaxBodyBytes = maxBatchBody
	create.BodyReadTimeout = time.Minute
	create.Middlewares = huma.Middlewares{a.streamed(operations), a.long(operations)}
	describeStreams(operations, &create)
	register(a, operations, create, a.createBatch)
	registerList(a, operations, operation("GET", "/v1/batches", "listBatches", "List batches, newest first", roleViewer, 200), listing[pageQuery, batchList, BatchBody]{
		handle: a.listBatches, page: (*pageQuery).page,
		items: func(l batchList) ([]BatchBody, string) { return l.Batches, l.NextPageToken },
	})
	register(a, operations, operation("GET", "/v1/batches/{id}", "getBatch", "Read a batch and its counts", roleViewer, 200), a.getBatch)
	a.registerBatchLife(operations)
}

func (a *API) createBatch(ctx context.Context, in *struct {
	QueueMode
	Body batchPost
},
) (*created[batchCreated], error) {
	b, err := a.newBatch(in.Body)
	if err != nil {
		return nil, err
	}
	list := listedIn(ctx)
	q, err := in.Body.queue(list, a.options.Limits)
	if err != nil {
		return nil, err
	}
	if list != nil {
		leave, err := a.turnOfRepeats(ctx, in.Body)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	return a.queueBatch(ctx, in.Body, b, q, in.QueueMode)
}

func (a *API) queueBatch(ctx context.Context, post batchPost, b store.Batch, q store.Queue, mode QueueMode) (*created[batchCreated], error) {
	q.DryRun, q.KnownOnly = mode.DryRun, mode.UnknownDevices == "refuse"
	warned, err := a.warnings(ctx, post.Limits)
	if err != nil {
		return nil, err
	}
	made, err := a.store.CreateBatch(ctx, actor(ctx), b, q)
	if err != nil {
		return nil, neverStarts(err)
	}
	answer := batchCreated{ID: made.ID, Tasks: made.Total, Warned: warned}
	if post.Duplicates == skipDuplicates {
		answer.Skipped = &made.Skipped
	}
	if made.Unknown.Tasks > 0 {
		answer.Unknown = &unknownTasks{made.Unknown.Tasks, made.Unknown.First}
	}
	if mode.DryRun {
		answer.ID = 0
		return &created[batchCreated]{http.StatusOK, answer}, nil
	}
	a.options.Dispatcher.Waiters.Fill(b.Pool)
	return &created[batchCreated]{http.StatusCreated, answer}, nil
}

func (a *API) newBatch(in batchPost) (store.Batch, error) {
	if err := checkPayload("payload", in.Payload); err != nil {
		return store.Batch{}, err
	}
	if in.LeaseMS != 0 {
		if err := a.checkLease(milliseconds(in.LeaseMS)); err != nil {
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
		Abort: in.Abort.rule(), Windows: opens, Limits: limited, FinishInside: in.FinishInside == nil || *in.FinishInside,
	}, nil
}

// queue is what the request asks for. list is that of a long body; nil: it is in the request.
func (in batchPost) queue(list *listed, limits Limits) (store.Queue, error) {
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
		return store.Queue{Tasks: in.tasks(list.name, list.entries(), limits)}, nil
	case len(in.Devices) > 0:
		return store.Queue{Tasks: in.tasks("devices", func(yield func(batchTask, error) bool) {
			for _, device := range in.Devices {
				if !yield(batchTask{Device: device}, nil) {
					return
				}
			}
		}, limits)}, nil
	}
	return store.Queue{Tasks: in.tasks("tasks", func(yield func(batchTask, error) bool) {
		for _, t := range in.Tasks {
			if !yield(t, nil) {
				return
			}
		}
	}, limits)}, nil
}

// tasks checks and yields the tasks of a list; a bad one refuses all.
func (in batchPost) tasks(list string, entries iter.Seq2[batchTask, error], limits Limits) iter.Seq2[store.NewTask, error] {
	shared, twice := newOverlay(in.Payload), newDuplicates(in)
	return func(yield func(store.NewTask, error) bool) {
		i := 0
		for entry, err := range entries {
			var task store.NewTask
			if err == nil {
				task, err = entry.task(shared)
			}
			if err == nil {
				err = limits.checkCount(i + 1)
			}
			if err == nil {
				err = twice.check(&task, list+"[%d]", i)
			}
			if !yield(task, badEntry(list, i, err)) {
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

func checkPayload(field string, payload raw) error {
	if len(payload) > maxPayload {
		return problem(http.StatusUnprocessableEntity, codePayloadTooLarge, fmt.Sprintf("%s: at most %d bytes", field, maxPayload))
	}
	return nil
}

// present makes null and absent the same.
func present(r raw) json.RawMessage {
	if string(r) == "null" {
		return nil
	}
	return json.RawMessage(r)
}

func (a *API) getBatch(ctx context.Context, in *BatchPath) (*body[BatchBody], error) {
	return shownBatch(a.store.Batch(ctx, in.ID))
}

func (a *API) listBatches(ctx context.Context, in *pageQuery) (*body[batchList], error) {
	before, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	batches, more, err := inParts(in.Size, func(last *store.Batch, limit int) ([]store.Batch, error) {
		if last != nil {
			before = last.ID
		}
		return a.store.Batches(ctx, before, limit)
	}, func(b store.Batch) int { return len(b.Payload) })
	if err != nil {
		return nil, err
	}
	list := batchList{Batches: make([]BatchBody, len(batches))}
	for i, b := range batches {
		list.Batches[i] = showBatch(b)
		list.NextPageToken = nextPage(more, strconv.FormatInt(b.ID, 10))
	}
	return &body[batchList]{list}, nil
}

func showBatch(b store.Batch) BatchBody {
	counts := make(map[string]int64)
	for _, state := range store.TaskStates() {
		counts[string(state)] = b.Counts[state]
	}
	rate := ratePerMinute(b)
	return BatchBody{
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
