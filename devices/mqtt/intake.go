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

// report is a received message that the handler has not handled yet.
type report struct {
	device devices.ID
	body   []byte
	ack    func() // acknowledges the message to the broker
}

// intake distributes received messages to workers. All messages of one device go to the same
// worker, so that they are handled in order.
type intake struct {
	options Options
	outbox  *outbox
	seed    maphash.Seed
	queues  []chan report // one for each worker
	workers rescue.Crew
	cancel  context.CancelFunc // cancels the contexts of the handler

	mu      sync.RWMutex // guards stopped; senders to the queues hold it, so that no queue is closed in use
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

// work handles a report. If the handling takes longer than Patience, work refuses r and the
// reports that follow it in the queue, and acknowledges them. Unacknowledged, they would fill the
// broker's window of open messages, and no report of another device would arrive. The
// goroutine that refuses them starts only after Patience.
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

// refuseBehind refuses r, and then the reports from behind until done is closed.
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

// receive puts a message into the queue of its worker, or refuses or drops it. It never blocks:
// paho calls it from the goroutine that also reads the broker's acknowledgements.
func (in *intake) receive(m paho.Message) {
	device, err := devices.ParseReportTopic(m.Topic())
	switch {
	case err != nil:
		in.count("bad_topic")
		m.Ack()
	case m.Retained():
		in.count("retained") // was sent at an unknown time and may be outdated
		m.Ack()
	default:
		in.enqueue(report{device: device, body: within(m.Payload()), ack: m.Ack})
	}
}

// within returns body, cut to MaxBody+1 bytes. A longer body is refused as too large, and must
// not stay in memory: brokers deliver up to 256 MiB, and thousands of reports may be queued.
func within(body []byte) []byte {
	if len(body) <= devices.MaxBody {
		return body
	}
	return bytes.Clone(body[:devices.MaxBody+1])
}

// enqueue puts a report into the queue of its worker, or refuses it if the queue is full. After stop it drops the report
// without an acknowledgement.
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

// refuse acknowledges a report and answers it with reason in place of the handler. It does not wait for room in the outbox.
func (in *intake) refuse(r report, reason devices.Reason) {
	in.count(string(reason))
	in.outbox.offer(replyTo(r, in.refusal(r, reason)))
	r.ack()
}

// count counts a report that the handler did not receive or did not finish.
func (in *intake) count(reason string) { in.options.Handler.CountReport(transport, reason, 0) }

// refusal returns the reply that refuses r. It reads only the id of the report.
func (in *intake) refusal(r report, reason devices.Reason) devices.Reply {
	read, _ := devices.DecodeReport(r.body)                                        // An error does not matter: the report is refused anyway.
	after := time.Duration((0.5 + rand.Float64()) * float64(in.options.BusyAfter)) //nolint:gosec // jitter
	return devices.Reply{Re: read.ID, Reason: reason, Code: string(reason), ReportAfterMS: after.Milliseconds()}
}

// handle answers a report. The outbox acknowledges it when the reply was sent or dropped.
func (in *intake) handle(ctx context.Context, r report) {
	ctx, cancel := context.WithTimeout(ctx, in.options.HandleTimeout)
	defer cancel()
	reply := in.answer(ctx, r)
	m := replyTo(r, reply)
	m.sent = r.ack
	in.outbox.send(m)
}

// answer returns the reply to r. A panic of the handler becomes a reply with the reason
// unavailable: one bad report must not end the process and all other reports.
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

// decide decodes the report and passes it to the handler. It trusts the device id of the topic: the broker has authenticated
// the device and checked the topic.
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

// stop waits until all queued reports are handled. If ctx ends first, it cancels the contexts of
// the handlers and returns the error of ctx.
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
