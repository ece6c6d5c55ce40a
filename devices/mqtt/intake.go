package mqtt

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
)

// report is a message on its way to the handler.
type report struct {
	device devices.ID
	body   []byte
	ack    func()
}

// intake hands messages to workers: those of one device always to the same
// one, so that they stay in order.
type intake struct {
	options Options
	outbox  *outbox
	seed    maphash.Seed
	queues  []chan report
	workers sync.WaitGroup
	cancel  context.CancelFunc

	mu      sync.RWMutex // guards the queues against being closed in use
	stopped bool
}

func newIntake(options Options, outbox *outbox) *intake {
	in := &intake{options: options, outbox: outbox, seed: maphash.MakeSeed(), cancel: func() {}}
	for range options.Workers {
		in.queues = append(in.queues, make(chan report, options.Queue))
	}
	return in
}

func (in *intake) start(ctx context.Context) {
	ctx, in.cancel = context.WithCancel(ctx)
	for _, queue := range in.queues {
		in.workers.Go(func() {
			for report := range queue {
				in.handle(ctx, report)
			}
		})
	}
}

// receive takes a message without ever blocking: paho calls it from the
// goroutine that also reads the broker's acknowledgements.
func (in *intake) receive(m paho.Message) {
	device, err := devices.ParseReportTopic(m.Topic())
	switch {
	case err != nil:
		in.options.Count(EventBadTopic)
		m.Ack()
	case m.Retained():
		in.options.Count(EventRetained) // said at an unknown time: no news
		m.Ack()
	default:
		in.enqueue(report{device: device, body: m.Payload(), ack: m.Ack})
	}
}

// enqueue drops what comes after stop unacknowledged.
func (in *intake) enqueue(r report) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.stopped {
		return
	}
	select {
	case in.queues[maphash.String(in.seed, string(r.device))%uint64(len(in.queues))] <- r:
	default:
		in.options.Count(EventBusy)
		in.outbox.offer(replyTo(r, in.busy()))
		r.ack()
	}
}

// busy is the answer of a full queue; it does not even read the report.
func (in *intake) busy() devices.Reply {
	after := time.Duration((0.5 + rand.Float64()) * float64(in.options.BusyAfter)) //nolint:gosec // jitter
	return devices.Reply{Reason: devices.ReasonBusyServer, Code: string(devices.ReasonBusyServer), ReportAfterMS: after.Milliseconds()}
}

func (in *intake) handle(ctx context.Context, r report) {
	ctx, cancel := context.WithTimeout(ctx, in.options.HandleTimeout)
	defer cancel()
	reply := in.answer(ctx, r)
	in.options.Count(EventReport)
	m := replyTo(r, reply)
	m.sent = r.ack
	in.outbox.send(m)
}

// answer turns a panic into a reply: one poisonous report must not end the
// process, and with it everybody else's.
func (in *intake) answer(ctx context.Context, r report) (reply devices.Reply) {
	defer func() {
		if cause := recover(); cause != nil {
			in.options.Count(EventPanic)
			in.options.Logger.ErrorContext(ctx, "handling a report panicked", "device", r.device, "panic", cause, "stack", string(debug.Stack()))
			reply = devices.Reply{Reason: devices.ReasonUnavailable, ReportAfterMS: in.busy().ReportAfterMS}
		}
	}()
	return in.options.Handler.HandleMQTT(ctx, r.device, r.body)
}

func replyTo(r report, reply devices.Reply) message {
	return message{topic: devices.ReplyTopic(r.device), qos: qosReply, body: reply.Encode()}
}

// stop waits until everything taken is handled; when ctx ends first, the
// handlers are told to.
func (in *intake) stop(ctx context.Context) error {
	in.mu.Lock()
	in.stopped = true
	for _, queue := range in.queues {
		close(queue)
	}
	in.mu.Unlock()
	defer in.cancel()
	return waitGroup(ctx, &in.workers)
}

// waitGroup waits for group until ctx ends.
func waitGroup(ctx context.Context, group *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
