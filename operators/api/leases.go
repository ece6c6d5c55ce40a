package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxMetadata              = 4096 // in bytes
	maxLeaseRequests         = 128  // concurrent requests for a slot, not counting requests that wait for a slot
	maxLeaseRequestsPerToken = 64   // concurrent requests of one token, counted in the same way
)

type leaseStore interface {
	Leases(ctx context.Context, filter store.LeaseFilter) ([]store.CallerLease, error)
	Task(ctx context.Context, id int64) (store.Task, *store.Grant, []store.Attempt, error)
	Pool(ctx context.Context, name string) (store.Pool, error)
}

// leaseOperations has the operations on the slots that callers (programs, not devices) hold or wait for.
type leaseOperations struct {
	ledger   leaseStore
	slots    dispatcher.Leases
	leaseMin leaseMinimum
	maxWait  time.Duration // maximum time that a response waits for a slot
	turns    *fair.Shares
}

// LeasePath has the path parameters of a lease of a pool.
type LeasePath struct {
	PoolPath
	Lease int64 `path:"lease" minimum:"1" maximum:"9007199254740991"`
}

func (l *leaseOperations) register(r *routes) {
	ask := documentStatus[operators.Lease](r, r.describeOperation("acquireLease"), http.StatusAccepted)
	ask.Middlewares = append(ask.Middlewares, r.newMiddlewares(l.extendWriteDeadline)...)
	registerResponse(r, ask, l.acquire)
	registerList[operators.LeaseList](r, r.describeOperation("listLeases"), l.list)
	register(r, r.describeOperation("getLease"), l.get)
	register(r, r.describeOperation("renewLease"), l.renew)
	registerResponse(r, r.describeOperation("releaseLease"), l.release)
}

// extendWriteDeadline extends the write deadline of a response that may wait for a slot. The default deadline is shorter.
func (l *leaseOperations) extendWriteDeadline(ctx huma.Context, next func(huma.Context)) error {
	if wait := l.preferredWait(ctx.Header("Prefer")); wait > 0 {
		_, w := humago.Unwrap(ctx)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + devices.AnswerAfterWait)) // unsupported in tests
	}
	next(ctx)
	return nil
}

// preferredWait returns how long the response to a request with this header Prefer may wait for a slot. If it is 0, the response
// does not wait.
func (l *leaseOperations) preferredWait(preferHeader string) time.Duration {
	return min(devicehttp.PreferredWait(http.Header{"Prefer": {preferHeader}}), max(l.maxWait, time.Second)).Truncate(time.Second)
}

type leaseResponse struct {
	Status            int
	PreferenceApplied string `header:"Preference-Applied"`
	Body              operators.Lease
}

func (l *leaseOperations) acquire(ctx context.Context, in *struct {
	PoolPath
	Prefer string `header:"Prefer" doc:"wait=25: wait at most 25 s in the queue for a slot, and keep the position for another minute"`
	Body   operators.NewLease
},
) (*leaseResponse, error) {
	request, err := l.newLeaseRequest(ctx, in.Pool, in.Body, l.preferredWait(in.Prefer))
	if err != nil {
		return nil, err
	}
	leave, err := startWhenFree(ctx, l.turns)
	if err != nil {
		return nil, err
	}
	request.OnPark = sync.OnceFunc(leave)
	defer request.OnPark()
	got, err := l.slots.Acquire(ctx, request)
	if err != nil {
		return nil, leaseProblem(err)
	}
	shown := toAPILease(got.Task, got.Grant)
	shown.HeldMS = got.Waited.Milliseconds()
	if got.Grant != nil {
		shown.LeaseMS = got.Usable.Milliseconds()
		return &leaseResponse{Status: http.StatusCreated, Body: shown}, nil
	}
	shown.LeaseRefusal = operators.LeaseRefusal{Reason: string(got.Cause.Code), EstimatedStart: apiTimeIfSet(got.Cause.EstimatedStart), RetryAfterMS: got.RetryAfter.Milliseconds()}
	if got.Cause.Position > 0 {
		shown.Position = &got.Cause.Position
	}
	if shown.Detail = got.Cause.Detail; request.Wait == 0 {
		p := newProblem(http.StatusConflict, codeNoSlot, "no slot: "+shown.Detail)
		p.LeaseRefusal, p.RetryAfter = shown.LeaseRefusal, got.RetryAfter
		return nil, p
	}
	return &leaseResponse{http.StatusAccepted, "wait=" + strconv.Itoa(int(request.Wait.Seconds())), shown}, nil
}

// newLeaseRequest checks body, the body of a request for a slot of pool, and converts it to the form of package dispatcher. wait is the
// maximum wait for a slot.
func (l *leaseOperations) newLeaseRequest(ctx context.Context, pool string, body operators.NewLease, wait time.Duration) (request dispatcher.LeaseRequest, err error) {
	if body.Holder != "" && devices.CheckPoolName(body.Holder) != nil {
		return request, invalidProblem("holder: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit")
	}
	metadata, err := readLeaseMetadata(body.Metadata)
	if err != nil {
		return request, err
	}
	return dispatcher.LeaseRequest{
		Leaser: leaserOf(ctx), Pool: pool, Holder: body.Holder, Lease: milliseconds(body.LeaseMS), Metadata: metadata, Wait: wait,
	}, l.checkLeaseLength(ctx, pool, body.LeaseMS)
}

// checkLeaseLength returns an error if a lease of lengthMS ms leaves its holder too little time or is longer than the pool allows. If the
// request names no length, lengthMS is 0.
func (l *leaseOperations) checkLeaseLength(ctx context.Context, pool string, lengthMS int64) error {
	if lengthMS == 0 {
		return nil
	}
	if err := l.leaseMin.checkLease("lease_ms", milliseconds(lengthMS)); err != nil {
		return err
	}
	poolSettings, err := l.ledger.Pool(ctx, pool)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return leaseProblem(store.ErrUnknownPool)
	case err == nil && milliseconds(lengthMS) > poolSettings.Longest:
		return invalidProblem("lease_ms: at most %d, the longest_lease_ms of pool %s", poolSettings.Longest.Milliseconds(), pool)
	}
	return err
}

// readLeaseMetadata returns the metadata of a lease in text, or nil if there is none. It returns an error unless text is a short JSON
// object.
func readLeaseMetadata(text json.RawMessage) (json.RawMessage, error) {
	var object map[string]json.RawMessage
	switch {
	case len(text) == 0 || string(text) == "null":
		return nil, nil
	case len(text) > maxMetadata:
		return nil, invalidProblem("metadata: at most %d bytes", maxMetadata)
	case json.Unmarshal(text, &object) != nil:
		return nil, invalidProblem("metadata: must be a JSON object")
	}
	return text, nil
}

func leaserOf(ctx context.Context) dispatcher.Leaser {
	who := operatorOf(ctx)
	return dispatcher.Leaser{Name: who.Name, Token: who.hash}
}

func leaseProblem(err error) error {
	lost, isLost := errors.AsType[*dispatcher.LostError](err)
	switch {
	case isLost:
		p := newProblem(http.StatusConflict, codeLeaseLost, lost.Detail)
		p.Reason = lost.Why
		if lost.Cancel {
			p.Cancel = lost.Why
		}
		return p
	case errors.Is(err, store.ErrUnknownPool):
		return newProblem(http.StatusNotFound, codeNotFound, "no such pool")
	case errors.Is(err, store.ErrExists):
		return newProblem(http.StatusConflict, codeAlreadyExists, "holder: has a lease in another pool; a holder can have only one lease").withCause(err)
	case errors.Is(err, dispatcher.ErrUnconfirmed):
		return newProblem(http.StatusServiceUnavailable, codeUnavailable, "no slot can be confirmed now: Redis cannot be reached, or does not know the pool yet; send again").withCause(err)
	case errors.Is(err, dispatcher.ErrLeaseToken):
		return invalidProblem("token: required, because the lease is held")
	}
	return err
}

func (l *leaseOperations) list(ctx context.Context, in *struct {
	PoolPath
	Page
},
) (page listPage[operators.Lease], err error) {
	if _, err := l.ledger.Pool(ctx, in.Pool); err != nil {
		return page, err
	}
	filter := store.LeaseFilter{Pool: in.Pool, After: in.after, Limit: in.Size}
	if who := operatorOf(ctx); who.Role == roleCaller {
		filter.Caller = who.Name
	}
	found, err := l.ledger.Leases(ctx, filter)
	return newPage(found, in.isFull(len(found)), toAPIHeldLease, func(one store.CallerLease) string { return one.Device }), err
}

func toAPIHeldLease(lease store.CallerLease) operators.Lease {
	if lease.Grant.Task == 0 {
		return toAPILease(lease.Task, nil)
	}
	return toAPILease(lease.Task, &lease.Grant)
}

func (l *leaseOperations) get(ctx context.Context, in *LeasePath) (operators.Lease, error) {
	task, grant, _, err := l.ledger.Task(ctx, in.Lease)
	if err != nil {
		return operators.Lease{}, err
	}
	who := operatorOf(ctx)
	if task.Pool != in.Pool || !store.IsCaller(task.Device) || grant == nil && task.State != store.Pending ||
		who.Role == roleCaller && path.Dir(task.Device) != path.Dir(store.HolderDevice(who.Name, "-")) {
		return operators.Lease{}, store.ErrNotFound
	}
	return toAPILease(task, grant), nil
}

// toAPILease converts the lease that task stores to the form of the API. held is its grant. If held is nil, the lease is waiting.
func toAPILease(task store.Task, held *store.Grant) operators.Lease {
	caller, holder := store.CallerAndHolder(task.Device)
	shown := operators.Lease{State: operators.LeaseWaiting, Lease: task.ID, Pool: task.Pool, Caller: caller, Holder: holder, Metadata: task.Payload}
	if held != nil {
		granted, until := apiTime(held.GrantedAt), apiTime(held.LeaseUntil)
		shown.State, shown.Token, shown.Slot, shown.Granted, shown.LeaseUntil, shown.Cancel = operators.LeaseHeld, held.Token, &held.Slot, &granted, &until, held.CancelWhy
	}
	return shown
}

func (l *leaseOperations) renew(ctx context.Context, in *struct {
	LeasePath
	Body operators.LeaseRenewal
},
) (operators.Lease, error) {
	if err := l.checkLeaseLength(ctx, in.Pool, in.Body.LeaseMS); err != nil {
		return operators.Lease{}, err
	}
	got, err := l.slots.Renew(ctx, leaserOf(ctx), in.Pool, in.Lease, in.Body.Token, milliseconds(in.Body.LeaseMS))
	if err != nil {
		return operators.Lease{}, leaseProblem(err)
	}
	shown := toAPILease(got.Task, got.Grant)
	shown.LeaseMS, shown.HeldMS = got.Usable.Milliseconds(), got.Waited.Milliseconds()
	return shown, nil
}

func (l *leaseOperations) release(ctx context.Context, in *struct {
	LeasePath
	Token int64 `query:"token" minimum:"1" maximum:"9007199254740991" doc:"Fencing token, if the lease holds a slot"`
},
) (*struct{}, error) {
	if err := l.slots.End(ctx, leaserOf(ctx), in.Pool, in.Lease, in.Token); err != nil {
		return nil, leaseProblem(err)
	}
	return &struct{}{}, nil
}
