package mqtt

import (
	"bytes"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/rescue"
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
	workers rescue.Crew
	cancel  context.CancelFunc

	mu      sync.RWMutex // guards the queues against being closed in use
	stopped bool
}

func newIntake(options Options, outbox *outbox) *intake {
	in := &intake{options: options, workers: rescue.Crew{Told: options.Panicked}, outbox: outbox, seed: maphash.MakeSeed(), cancel: func() {}}
	for range options.Workers {
		in.queues = append(in.queues, make(chan report, options.Queue))
	}
	return in
}

func (in *intake) start(ctx context.Context) {
	ctx, in.cancel = context.WithCancel(ctx)
	for _, queue := range in.queues {
		in.workers.Go("handling reports", func() {
			for r := range queue {
				in.work(ctx, r, queue)
			}
		})
	}
}

// work handles a report. When that takes longer than Patience, it and those
// that come behind it are refused: unacknowledged they would fill the
// broker's window, and no other device would be heard. Only then is there a
// goroutine for it.
func (in *intake) work(ctx context.Context, r report, behind <-chan report) {
	patience, over := context.WithTimeout(context.WithoutCancel(ctx), in.options.Patience)
	defer over()
	done, refused := make(chan struct{}), make(chan struct{})
	stop := rescue.After(patience, func() error {
		defer close(refused)
		in.workers.Told.Do("refusing reports", func() { in.refuseBehind(r, behind, done) })
		return nil
	})
	in.workers.Told.Do("handling a report", func() { in.handle(ctx, r) })
	if !stop() {
		close(done)
		<-refused
	}
}

// refuseBehind refuses a report and those behind it until it is done.
func (in *intake) refuseBehind(r report, behind <-chan report, done <-chan struct{}) {
	in.refuse(r, devices.ReasonUnavailable)
	for {
		select {
		case <-done:
			return
		case next, open := <-behind:
			if !open {
				<-done
				return
			}
			in.refuse(next, devices.ReasonUnavailable)
		}
	}
}

// receive takes a message without ever blocking: paho calls it from the
// goroutine that also reads the broker's acknowledgements.
func (in *intake) receive(m paho.Message) {
	device, err := devices.ParseReportTopic(m.Topic())
	switch {
	case err != nil:
		in.count("bad_topic")
		m.Ack()
	case m.Retained():
		in.count("retained") // sent at an unknown time, perhaps outdated
		m.Ack()
	default:
		in.enqueue(report{device: device, body: within(m.Payload()), ack: m.Ack})
	}
}

// within cuts a body that will be refused as too large: brokers deliver up to
// 256 MiB, and thousands may be waiting.
func within(body []byte) []byte {
	if len(body) <= devices.MaxBody {
		return body
	}
	return bytes.Clone(body[:devices.MaxBody+1])
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
		in.refuse(r, devices.ReasonBusyServer)
	}
}

// refuse answers in place of the handler, and never blocks for long.
func (in *intake) refuse(r report, reason devices.Reason) {
	in.count(string(reason))
	in.outbox.offer(replyTo(r, in.refusal(r, reason)))
	r.ack()
}

// count counts a report that did not come to the handler, or not whole.
func (in *intake) count(reason string) { in.options.Handler.CountReport(transport, reason, 0) }

// refusal reads of the report only which one it is.
func (in *intake) refusal(r report, reason devices.Reason) devices.Reply {
	read, _ := devices.DecodeReport(r.body)                                        // what is wrong with it does not matter now
	after := time.Duration((0.5 + rand.Float64()) * float64(in.options.BusyAfter)) //nolint:gosec // jitter
	return devices.Reply{Re: read.ID, Reason: reason, Code: string(reason), ReportAfterMS: after.Milliseconds()}
}

func (in *intake) handle(ctx context.Context, r report) {
	ctx, cancel := context.WithTimeout(ctx, in.options.HandleTimeout)
	defer cancel()
	reply := in.answer(ctx, r)
	m := replyTo(r, reply)
	m.sent = r.ack
	in.outbox.send(m)
}

// answer turns a panic into a reply: one bad report must not end the
// process, and with it everybody else's.
func (in *intake) answer(ctx context.Context, r report) (reply devices.Reply) {
	err := rescue.Call(func() error {
		reply = in.decide(ctx, r)
		return nil
	})
	if in.workers.Told.Tell("handling a report of "+string(r.device), err) != nil {
		in.count(string(devices.ReasonUnavailable))
		return in.refusal(r, devices.ReasonUnavailable)
	}
	return reply
}

// decide asks the handler. The broker let the device in, and its topic is believed.
func (in *intake) decide(ctx context.Context, r report) (reply devices.Reply) {
	started, to := time.Now(), in.options.Handler
	said, err := devices.DecodeReport(r.body)
	if err == nil {
		reply, err = to.HandleReport(ctx, devices.Caller{Device: r.device, Via: devices.ViaSession}, said)
	}
	if err != nil {
		refusal := devices.RefusalOf(err)
		reply = refusal.Reply(said.ID, to.AfterRefusal(refusal.Reason))
		if reply.Reason == devices.ReasonUnavailable {
			in.options.Logger.WarnContext(ctx, "report not answered", "device", r.device, "err", err)
		}
	}
	to.CountReport(transport, string(reply.Reason), time.Since(started))
	return reply
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
	return in.workers.WaitWithin(ctx)
}
