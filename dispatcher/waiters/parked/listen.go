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

// retry is the time for which a listener waits before it connects again.
const retry = 200 * time.Millisecond

var errSilent = errors.New("no data was received on the connection")

// Listener receives the messages of the replicas, one after the other. Its methods must not block.
type Listener interface {
	// OnNewerReport is called when a newer report of the device, with this number, was parked at another replica.
	OnNewerReport(device string, number int64)
	// OnWake is called with messages that wake parked reports. A message may be addressed to a report at another replica.
	OnWake(messages []WakeMessage)
}

// Listen passes the messages of the replicas to listener until ctx ends. While Redis does not answer, messages are lost, and Listen
// reconnects. If onSubscribed is not nil, it is called each time a subscription begins.
func (b *Board) Listen(ctx context.Context, listener Listener, onSubscribed func()) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		_ = b.listen(ctx, listener, onSubscribed) // the semaphore and the passes report the outage of Redis
		again.Reset(retry)
	}
}

// listen passes messages to listener until the connection fails. It reads the connection itself, because the Go channels of the Redis client
// do not detect a server that hangs. After b.quiet without a message, listen pings the server.
func (b *Board) listen(ctx context.Context, listener Listener, onSubscribed func()) error {
	sub := b.client.Subscribe(ctx, b.channel)
	defer func() { _ = sub.Close() }()
	unhook := rescue.After(ctx, sub.Close) // a read does not end with its context
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
			if onSubscribed != nil {
				onSubscribed()
			}
		case *redis.Message:
			dispatchMessage(listener, m.Payload)
		}
	}
}

func dispatchMessage(listener Listener, message string) {
	kind, rest, _ := strings.Cut(message, " ")
	switch kind {
	case "newer":
		text, device, _ := strings.Cut(rest, " ")
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			listener.OnNewerReport(device, number)
		}
	case "wake":
		var calls []WakeMessage
		if json.Unmarshal([]byte(rest), &calls) == nil {
			listener.OnWake(calls)
		}
	}
}
