package operators

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// NewLease is the request for a slot of a pool. One caller can have several holders, such as jobs. The field Holder names the holder that
// gets the slot.
type NewLease struct {
	Holder   string          `json:"holder,omitempty" maxLength:"64" doc:"Name of the holder: 1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit. A holder has one lease; a repeated request returns it. Default: a generated name"`
	LeaseMS  int64           `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" doc:"How long the slot may be held without a renewal. Default: the lease of the pool"`
	Metadata json.RawMessage `json:"metadata,omitempty" doc:"An object for people, at most 4096 bytes"`
}

// The states of an open lease.
const (
	LeaseHeld    = "held"
	LeaseWaiting = "waiting"
)

// Lease is a slot that a holder of a caller has, or, in the state waiting, the place of this holder in the queue.
type Lease struct {
	State  string `json:"state" enum:"held,waiting"`
	Lease  int64  `json:"lease" doc:"Number of the lease: the id of its task"`
	Pool   string `json:"pool"`
	Caller string `json:"caller" doc:"Name of the caller's token"`
	Holder string `json:"holder"`

	Token      int64  `json:"token,omitempty" doc:"Fencing token: the later of two holders of a slot has the higher token"`
	Slot       *int   `json:"slot,omitempty"`
	Granted    *Time  `json:"granted_at,omitempty"`
	LeaseUntil *Time  `json:"lease_until,omitempty" doc:"When the slot is taken back, by the clock of the ledger"`
	LeaseMS    int64  `json:"lease_ms,omitempty" doc:"How long the slot may be used, counted from the sending of the request plus held_ms"`
	HeldMS     int64  `json:"held_ms,omitempty" doc:"How long the server held the reply"`
	Cancel     string `json:"cancel,omitempty" doc:"Why the holder is asked to give the slot back"`

	LeaseRefusal
	Detail   string          `json:"detail,omitempty" doc:"Explains the reason, for people"`
	Metadata json.RawMessage `json:"metadata,omitempty"`

	// UsableUntil is the time until which the slot may be used, by the clock of this process. It is computed from a time before
	// the request was sent. Acquire, WaitForSlot and Renew set it.
	UsableUntil time.Time `json:"-"`
}

// HolderName returns the name CALLER/HOLDER if device is @CALLER/HOLDER, and an empty string if device is the id of a device. Fields of the
// API that contain a device id contain @CALLER/HOLDER if a caller holds the slot.
func HolderName(device string) string {
	if name, is := strings.CutPrefix(device, "@"); is {
		return name
	}
	return ""
}

// LeaseRefusal has the reason why there is no slot.
type LeaseRefusal struct {
	Reason         string `json:"reason,omitempty" doc:"Why a lease waits: a code of why; or why it is lost: ended, reaped, released, stale, or why its holder is to stop"`
	Position       *int   `json:"position,omitempty" doc:"Position in the queue; 1 is next"`
	EstimatedStart *Time  `json:"estimated_start,omitempty"`
	RetryAfterMS   int64  `json:"retry_after_ms,omitempty" doc:"Wait before the next request"`
}

// LeaseList is a page of leases.
type LeaseList struct {
	Leases        []Lease `json:"leases"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// LeaseRenewal is the request to extend a lease.
type LeaseRenewal struct {
	Token   int64 `json:"token" minimum:"1" maximum:"9007199254740991"`
	LeaseMS int64 `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" doc:"New length, counted from now, unless the lease already ends later. Default: the present length"`
}

// Leases has the calls about slots that callers hold.
type Leases struct {
	client *Client

	List ListOf[string, All, Lease]     `op:"GET /v1/pools/{pool}/leases" id:"listLeases" role:"viewer" callers:"true" doc:"List the open leases of a pool by their holders; a caller sees its own"`
	Get  CallWith[string, int64, Lease] `op:"GET /v1/pools/{pool}/leases/{lease}" id:"getLease" role:"viewer" callers:"true" doc:"Read an open lease"`

	_ struct{} `op:"POST /v1/pools/{pool}/leases" id:"acquireLease" role:"operator" status:"201" callers:"true" doc:"Lease a slot for a caller, or get its position in the queue"`
	_ struct{} `op:"POST /v1/pools/{pool}/leases/{lease}/renew" id:"renewLease" role:"operator" callers:"true" log:"none" doc:"Renew a lease"`
	_ struct{} `op:"DELETE /v1/pools/{pool}/leases/{lease}" id:"releaseLease" role:"operator" status:"204" callers:"true" doc:"Give back a slot, or the position in the queue; can be repeated"`
}

// Acquire asks for a slot. If no slot is free, the server keeps the request waiting in the queue for at most wait, or for its own maximum
// if that is shorter. If there is still no slot after that time, the Lease has the state waiting, and the caller must send the same request
// again. If wait is 0 and the pool has no free slot, the error is a *Problem with the code no_slot, and the holder does not enter the
// queue.
func (c Leases) Acquire(ctx context.Context, pool string, request NewLease, wait time.Duration) (Lease, error) {
	r := c.client.prepareRequest(ctx, "acquireLease", pool, request)
	if wait > 0 {
		r.Prefer = "wait=" + strconv.Itoa(int((wait+time.Second-1)/time.Second))
	}
	return c.callForLease(ctx, r)
}

// callForLease sends a request for a lease and computes the field UsableUntil of the response.
func (c Leases) callForLease(ctx context.Context, request Request) (Lease, error) {
	var got Lease
	sentAt := time.Now()
	err := c.client.Do(ctx, request, &got)
	got.UsableUntil = sentAt.Add(time.Duration(got.HeldMS+got.LeaseMS) * time.Millisecond)
	return got, err
}

const (
	firstWait     = time.Second      // wait of the first request: short, because its response has the position in the queue
	longestWait   = 25 * time.Second // wait of each later request: proxies close requests that take longer
	responseGrace = 10 * time.Second // time for a late response, in addition to the wait
)

// WaitForSlot acquires a slot within maxWait and returns its lease. If onWaiting is not nil, WaitForSlot calls it with each response
// without a slot, and with each error after which the wait continues. A request whose response was lost is sent again, because a holder has
// only one lease. If WaitForSlot gets no slot, it leaves the queue and returns the last response.
//
// If the server asks the holder to give its slot back, WaitForSlot returns no lease: the error is a *Problem with the code lease_lost, and
// its field Cancel has the reason.
func (c Leases) WaitForSlot(ctx context.Context, pool string, request NewLease, maxWait time.Duration, onWaiting func(Lease, error)) (last Lease, err error) {
	if request.Holder == "" {
		request.Holder = strings.ToLower(rand.Text())
	}
	w, until := slotWait{pool: pool}, time.Now().Add(maxWait)
	defer func() {
		if last.State != LeaseHeld && (w.last.Lease != 0 || w.responseLost) {
			err = errors.Join(err, c.leaveQueue(ctx, pool, request.Holder, w.last.Lease))
		}
	}()
	for wait := firstWait; ; wait = longestWait {
		got, err := c.acquireWithTimeout(ctx, pool, request, min(wait, max(time.Until(until), 0)))
		if done, failed := w.receiveResponse(ctx, got, err); done {
			return w.last, failed
		}
		if onWaiting != nil {
			onWaiting(got, err)
		}
		if !time.Now().Before(until) {
			return w.last, err
		}
		if err := Sleep(ctx, min(max(firstPause, time.Duration(got.RetryAfterMS)*time.Millisecond), max(time.Until(until), 0))); err != nil {
			return w.last, err
		}
	}
}

// slotWait is the state of a holder that waits for a slot.
type slotWait struct {
	pool         string
	last         Lease // last response
	responseLost bool  // a response was lost: the holder may hold a slot or wait, although no response reports it
}

// receiveResponse processes one response, or requestErr if the request failed. done is true if another request is pointless. Then waitErr
// is the error of the wait, or nil if the holder has a slot.
func (w *slotWait) receiveResponse(ctx context.Context, response Lease, requestErr error) (done bool, waitErr error) {
	switch {
	case requestErr == nil && response.State == LeaseHeld && response.Cancel != "":
		return true, leaseLostProblem(w.pool, response)
	case requestErr == nil:
		w.last = response
		return response.State == LeaseHeld, nil
	case ctx.Err() != nil:
		w.responseLost = true
		return true, ctx.Err()
	case !IsTransient(requestErr):
		return true, requestErr
	}
	w.responseLost = true
	return false, nil
}

// leaseLostProblem returns the error for a lease in pool whose holder must give its slot back. The server answers a renewal of this lease
// with the same error.
func leaseLostProblem(pool string, lost Lease) error {
	return &Problem{
		Title: http.StatusText(http.StatusConflict), Status: http.StatusConflict, Code: "lease_lost", Cancel: lost.Cancel,
		Detail: "holder " + lost.Holder + " is asked to give its slot of pool " + pool + " back: " + lost.Cancel, LeaseRefusal: LeaseRefusal{Reason: lost.Cancel},
	}
}

// acquireWithTimeout calls Acquire and waits for the response for at most wait + responseGrace. After this time, the error is a *LostError,
// as if the response was lost.
func (c Leases) acquireWithTimeout(ctx context.Context, pool string, request NewLease, wait time.Duration) (Lease, error) {
	limited, cancel := context.WithTimeout(ctx, wait+responseGrace)
	defer cancel()
	got, err := c.Acquire(limited, pool, request, wait)
	if err != nil && limited.Err() != nil {
		err = &LostError{URL: c.client.URL(), Err: err, Reached: true}
	}
	return got, err
}

// leaveQueue removes the lease of holder from the queue of pool, even if ctx has ended. If the id of the lease is unknown, leaseID is 0. If
// a slot was granted in the meantime, leaveQueue releases the slot.
func (c Leases) leaveQueue(ctx context.Context, pool, holder string, leaseID int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), responseGrace)
	defer cancel()
	if leaseID != 0 {
		err := c.Release(ctx, pool, leaseID, 0)
		if !HasStatus(err, http.StatusUnprocessableEntity) {
			return err
		}
	}
	got, err := c.Acquire(ctx, pool, NewLease{Holder: holder}, firstWait)
	if err != nil {
		return err
	}
	return c.Release(ctx, pool, got.Lease, got.Token)
}

// Renew extends a lease that holds a slot, and returns the lease. renewal has its fencing token and its new length. If the lease is lost,
// the error is a *Problem with the code lease_lost.
func (c Leases) Renew(ctx context.Context, pool string, leaseID int64, renewal LeaseRenewal) (Lease, error) {
	return c.callForLease(ctx, c.client.prepareRequest(ctx, "renewLease", pool, leaseID, renewal))
}

// Release ends a lease. If the lease holds a slot, fencingToken must be its fencing token. If fencingToken is 0, Release removes a waiting
// lease from the queue.
func (c Leases) Release(ctx context.Context, pool string, leaseID, fencingToken int64) error {
	query := url.Values{}
	if fencingToken != 0 {
		query.Set("token", strconv.FormatInt(fencingToken, 10))
	}
	return c.client.Do(ctx, c.client.prepareRequest(ctx, "releaseLease", pool, leaseID, query), nil)
}
