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

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxBatchBody = 64 << 20 // bytes; about 1,000,000 device ids
	maxPayload   = 32 << 10 // bytes of one task's payload
)

type batchStore interface {
	CreateBatch(ctx context.Context, actor string, b store.Batch, tasks iter.Seq2[store.NewTask, error]) (store.Batch, error)
	Batch(ctx context.Context, id int64) (store.Batch, error)
	Batches(ctx context.Context, before int64, limit int) ([]store.Batch, error)
}

type batchPost struct {
	Name           string      `json:"name,omitempty" maxLength:"200"`
	Pool           string      `json:"pool" minLength:"1" maxLength:"64"`
	Kind           string      `json:"kind,omitempty" maxLength:"64" doc:"What the device is to do; yours to define"`
	Payload        raw         `json:"payload,omitempty" doc:"For tasks without their own; at most 32 KiB"`
	Priority       int         `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000" doc:"Higher first"`
	Weight         int         `json:"weight,omitempty" minimum:"1" maximum:"1000" default:"1" doc:"Share among the batches of a pool; kept, not in effect in this release"`
	NotBefore      *time.Time  `json:"not_before,omitempty" nullable:"true"`
	NotAfter       *time.Time  `json:"not_after,omitempty" nullable:"true" doc:"Pending tasks expire then"`
	MaxAttempts    int         `json:"max_attempts,omitempty" minimum:"1" maximum:"100" default:"3"`
	RetryOn        []string    `json:"retry_on,omitempty" nullable:"true" enum:"failed,timed_out" doc:"Causes that are retried; default both, also when empty: max_attempts 1 retries nothing"`
	RetryBackoffMS *int64      `json:"retry_backoff_ms,omitempty" minimum:"0" maximum:"86400000" default:"10000" doc:"Before the second attempt; doubles, jittered, at most an hour"`
	OnLost         string      `json:"on_lost,omitempty" enum:"retry,fail" default:"retry" doc:"When a lease lapsed"`
	LeaseMS        int64       `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" doc:"Default: the pool's"`
	MaxRunMS       int64       `json:"max_run_ms,omitempty" minimum:"1" maximum:"604800000" doc:"Renewals end there; default an hour"`
	Devices        []string    `json:"devices,omitempty" nullable:"true" doc:"One task for each; or tasks"`
	Tasks          []batchTask `json:"tasks,omitempty" nullable:"true" doc:"Tasks with payloads of their own; or devices"`
}

type batchTask struct {
	Device   string `json:"device"`
	Payload  raw    `json:"payload,omitempty"`
	Priority *int   `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000"`
}

type batchCreated struct {
	ID    int64 `json:"id"`
	Tasks int64 `json:"tasks"`
}

type batchBody struct {
	ID             int64            `json:"id"`
	Name           string           `json:"name"`
	Pool           string           `json:"pool"`
	Kind           string           `json:"kind"`
	State          string           `json:"state" enum:"scheduled,running,paused,cancelling,finished,cancelled"`
	Priority       int              `json:"priority"`
	Weight         int              `json:"weight"`
	NotBefore      *timestamp       `json:"not_before" nullable:"true"`
	NotAfter       *timestamp       `json:"not_after" nullable:"true"`
	MaxAttempts    int              `json:"max_attempts"`
	RetryOn        []string         `json:"retry_on"`
	RetryBackoffMS int64            `json:"retry_backoff_ms"`
	OnLost         string           `json:"on_lost"`
	Created        timestamp        `json:"created_at"`
	Total          int64            `json:"total"`
	Counts         map[string]int64 `json:"counts" doc:"Tasks by state; they add up to total"`
	RatePerMinute  *float64         `json:"rate_per_minute" nullable:"true" doc:"null in this release"`
	ETA            *timestamp       `json:"eta" nullable:"true" doc:"null: unknown"`
}

type batchList struct {
	Batches       []batchBody `json:"batches"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

type batchID struct {
	ID int64 `path:"id" minimum:"1" maximum:"9007199254740991"`
}

func (a *API) registerBatches(operations huma.API) {
	create := operation("POST", "/v1/batches", "createBatch", "Queue tasks", roleOperator, 201)
	create.MaxBodyBytes = maxBatchBody
	create.BodyReadTimeout = time.Minute
	register(a, operations, create, a.createBatch)
	register(a, operations, operation("GET", "/v1/batches", "listBatches", "List batches, newest first", roleViewer, 200), a.listBatches)
	register(a, operations, operation("GET", "/v1/batches/{id}", "getBatch", "Read a batch and its counts", roleViewer, 200), a.getBatch)
}

func (a *API) createBatch(ctx context.Context, in *struct{ Body batchPost }) (*body[batchCreated], error) {
	b, err := a.newBatch(in.Body)
	if err != nil {
		return nil, err
	}
	tasks, err := in.Body.tasks()
	if err != nil {
		return nil, err
	}
	made, err := a.store.CreateBatch(ctx, actor(ctx), b, tasks)
	if err != nil {
		return nil, err
	}
	return &body[batchCreated]{batchCreated{ID: made.ID, Tasks: made.Total}}, nil
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
	if in.NotBefore != nil && in.NotAfter != nil && !in.NotAfter.After(*in.NotBefore) {
		return store.Batch{}, problem(http.StatusUnprocessableEntity, codeInvalidField, "not_after: must be later than not_before")
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
		Priority: in.Priority, Weight: cmp.Or(in.Weight, 1), NotBefore: in.NotBefore, NotAfter: in.NotAfter,
		MaxAttempts: cmp.Or(in.MaxAttempts, 3), RetryOn: retryOn, RetryBackoff: milliseconds(backoff),
		OnLost: cmp.Or(in.OnLost, "retry"), Lease: milliseconds(in.LeaseMS), MaxRun: milliseconds(in.MaxRunMS),
	}, nil
}

// tasks checks and yields the tasks of the request; a bad one refuses all.
func (in batchPost) tasks() (iter.Seq2[store.NewTask, error], error) {
	if (len(in.Devices) == 0) == (len(in.Tasks) == 0) {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, "devices, tasks: exactly one of them, with at least one entry")
	}
	return func(yield func(store.NewTask, error) bool) {
		for i, device := range in.Devices {
			_, err := devices.ParseID(device)
			if !yield(store.NewTask{Device: device}, badEntry("devices", i, err)) {
				return
			}
		}
		for i, t := range in.Tasks {
			_, err := devices.ParseID(t.Device)
			if err == nil {
				err = checkPayload("payload", t.Payload)
			}
			if !yield(store.NewTask{Device: t.Device, Payload: present(t.Payload), Priority: t.Priority}, badEntry("tasks", i, err)) {
				return
			}
		}
	}, nil
}

func badEntry(list string, i int, err error) error {
	if err == nil {
		return nil
	}
	return problem(http.StatusUnprocessableEntity, codeInvalidField, fmt.Sprintf("%s[%d]: %v", list, i, err))
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

func (a *API) getBatch(ctx context.Context, in *batchID) (*body[batchBody], error) {
	b, err := a.store.Batch(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &body[batchBody]{showBatch(b)}, nil
}

func (a *API) listBatches(ctx context.Context, in *struct{ Page }) (*body[batchList], error) {
	before, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	batches, err := a.store.Batches(ctx, before, in.Size)
	if err != nil {
		return nil, err
	}
	list := batchList{Batches: make([]batchBody, len(batches))}
	for i, b := range batches {
		list.Batches[i] = showBatch(b)
		list.NextPageToken = nextPage(in.Page, len(batches), strconv.FormatInt(b.ID, 10))
	}
	return &body[batchList]{list}, nil
}

func showBatch(b store.Batch) batchBody {
	counts := make(map[string]int64)
	for _, state := range store.TaskStates() {
		counts[string(state)] = b.Counts[state]
	}
	return batchBody{
		ID: b.ID, Name: b.Name, Pool: b.Pool, Kind: b.Kind, State: batchState(b),
		Priority: b.Priority, Weight: b.Weight, NotBefore: stampPointer(b.NotBefore), NotAfter: stampPointer(b.NotAfter),
		MaxAttempts: b.MaxAttempts, RetryOn: b.RetryOn, RetryBackoffMS: b.RetryBackoff.Milliseconds(), OnLost: b.OnLost,
		Created: stamp(b.CreatedAt), Total: b.Total, Counts: counts,
	}
}

// batchState derives the state: a batch has ended when none of its tasks is
// open.
func batchState(b store.Batch) string {
	open := b.Counts[store.Pending]+b.Counts[store.Dispatched] > 0
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
