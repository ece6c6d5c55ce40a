package simulator

import (
	"context"
	"time"
)

// serverLink sends the reports of one device. Replies arrive in the inbox of the device. send never waits for the network.
type serverLink interface {
	// open starts the link. hangUp ends it.
	open(ctx context.Context, inbox chan<- linkMessage) (hangUp func())
	// send sends one report. Its answer arrives in inbox.
	send(ctx context.Context, outgoing outgoingReport, inbox chan<- linkMessage)
}

type outgoingReport struct {
	id         string // id of the report; "" for garbage
	body       []byte
	closeEarly bool          // close the connection before the reply is read
	holdTime   time.Duration // how long the server may hold the answer; 0 means not at all
}

type answerKind int

const (
	answered  answerKind = iota // a reply, or a push
	refused                     // 400, 413, 422: the same bytes must never be sent again
	forbidden                   // 401, 403, 429 (a locked-out address)
	failed                      // any other failure
)

// linkMessage is a message from a link to a device: a reply, a push, or the failure of a report.
type linkMessage struct {
	id         string // id of the report it answers; "" for garbage or a push
	garbage    bool
	kind       answerKind
	status     int // HTTP status; 0 over MQTT
	reply      reply
	held       bool          // the server agreed to hold the answer
	retryAfter time.Duration // if failed: wait that the server requested; 0 means none
	err        error         // if failed: why there is no readable answer
}

func deliverMessage(ctx context.Context, deviceInbox chan<- linkMessage, message linkMessage) {
	select {
	case deviceInbox <- message:
	case <-ctx.Done():
	}
}
