package simulator

import (
	"context"
	"time"
)

// link carries one device's reports. Replies, if any, arrive on
// the device's inbox; send itself never blocks on the network.
type link interface {
	// open starts the link; hangUp ends it.
	open(ctx context.Context, inbox chan<- arrival) (hangUp func())
	// send sends one report.
	send(ctx context.Context, p parcel, inbox chan<- arrival)
}

// parcel is one report on its way.
type parcel struct {
	id   string // of the report; "" for garbage
	body []byte
	cut  bool          // hang up before the reply is read
	wait time.Duration // ask for the answer to be held so long; 0: not
}

// verdict is what became of a report.
type verdict int

const (
	answered  verdict = iota // a reply, or a push
	refused                  // 400, 413, 422: never the same bytes again
	forbidden                // 401, 403
	failed                   // anything else
)

// arrival is what a link delivers: a reply or the failure of a report.
type arrival struct {
	id      string // of the report it answers; "" = garbage, or a push
	garbage bool
	verdict verdict
	status  int // HTTP status; 0 = none
	reply   reply
	held    bool          // the server agreed to hold the answer
	wait    time.Duration // failed: asked for by the server; 0 = nothing asked
	err     error         // failed: why there is no answer that can be read
}

// deliver hands an arrival to the device unless it is gone.
func deliver(ctx context.Context, inbox chan<- arrival, a arrival) {
	select {
	case inbox <- a:
	case <-ctx.Done():
	}
}
