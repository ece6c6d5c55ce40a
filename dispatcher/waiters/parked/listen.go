package parked

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// retry is how long a listener waits before it connects again.
const retry = 200 * time.Millisecond

var errSilent = errors.New("the connection is silent")

// Listener is told what replicas say, one message after the other; it must not
// block.
type Listener interface {
	// Newer: a newer report of the device was parked elsewhere, under this number.
	Newer(device string, number int64)
	// Called: of these reports, those that are parked here are to look again.
	Called(calls []Call)
}

// Listen tells the listener until ctx ends. While Redis is away messages are
// lost; it connects again by itself. heard, unless nil, is called each time it
// begins to hear.
func (b *Board) Listen(ctx context.Context, to Listener, heard func()) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		_ = b.listen(ctx, to, heard) // the semaphore and the passes say that Redis is away
		again.Reset(retry)
	}
}

// listen is one connection. The client's own channels never find out that a
// server is silent: here it has to answer a ping.
func (b *Board) listen(ctx context.Context, to Listener, heard func()) error {
	sub := b.client.Subscribe(ctx, b.channel)
	defer func() { _ = sub.Close() }()
	unhook := rescue.After(ctx, sub.Close) // a reading does not end with its context
	defer unhook()
	for asked := false; ; {
		message, err := sub.ReceiveTimeout(ctx, b.quiet)
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && !asked {
			if err := sub.Ping(ctx); err != nil {
				return err
			}
			asked = true
			continue
		}
		if err != nil {
			return errors.Join(err, errSilent)
		}
		asked = false
		switch m := message.(type) {
		case *redis.Subscription:
			if heard != nil {
				heard()
			}
		case *redis.Message:
			tell(to, m.Payload)
		}
	}
}

// tell passes a message on. One that cannot be read says nothing.
func tell(to Listener, message string) {
	kind, rest, _ := strings.Cut(message, " ")
	switch kind {
	case "newer":
		text, device, _ := strings.Cut(rest, " ")
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			to.Newer(device, number)
		}
	case "wake":
		var calls []Call
		if json.Unmarshal([]byte(rest), &calls) == nil {
			to.Called(calls)
		}
	}
}
