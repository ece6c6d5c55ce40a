package mqtt

import (
	"bytes"
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/fair"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/rescue"
)

// maxWaitingPerDevice is the maximum number of reports of one device that wait for a worker, so that one device cannot fill a queue.
const maxWaitingPerDevice = 4

type receivedReport struct {
	device     devices.ID
	body       []byte
	ack        func() // acknowledges the message to the broker
	endWaiting func() // stops counting the report for maxWaitingPerDevice
}

// intake distributes received messages to workers. All messages of one device go to the same worker, so that they are handled in the order
// of their arrival.
type intake struct {
	options Options
	outbox  *outbox
	seed    maphash.Seed
	queues  []chan receivedReport // one for each worker
	waiting *fair.Shares          // the reports in the queues, by device
	excess  atomic.Int64          // reports above the rate of their devices since the last check of watchExcess
	workers rescue.ReportingGroup
	cancel  context.CancelFunc // cancels the contexts of the handler

	mu      sync.RWMutex // guards stopped; senders to the queues hold it, so that no queue is closed in use
	stopped bool
}

func newIntake(options Options, outbox *outbox) *intake {
	in := &intake{options: options, workers: rescue.ReportingGroup{OnPanic: options.Panicked}, outbox: outbox, seed: maphash.MakeSeed(), cancel: func() {}}
	in.waiting = fair.NewSharesWithoutReserve(options.Workers*options.Queue+options.Workers, maxWaitingPerDevice)
	for range options.Workers {
		in.queues = append(in.queues, make(chan receivedReport, options.Queue))
	}
	return in
}

func (in *intake) start(ctx context.Context) {
	ctx, in.cancel = context.WithCancel(ctx)
	for _, queue := range in.queues {
		in.workers.Go("handling reports", func() {
			for r := range queue {
				r.endWaiting()
				in.handleOrRefuseAfterPatience(ctx, r, queue)
			}
		})
	}
}

// handleOrRefuseAfterPatience handles report. If the handling takes longer than Patience, it refuses and acknowledges report and the reports
// behind it in queue. Without this, the unacknowledged messages would fill the broker's window, and no report of another device would arrive.
// The handler still finishes report, and then its reply is sent.
func (in *intake) handleOrRefuseAfterPatience(ctx context.Context, report receivedReport, queue <-chan receivedReport) {
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), in.options.Patience)
	defer cancel()
	done, refused := make(chan struct{}), make(chan struct{})
	stop := rescue.After(patience, func() error {
		defer close(refused)
		in.workers.OnPanic.Run("refusing reports", func() { in.refuseQueued(report, queue, done) })
		return nil
	})
	in.workers.OnPanic.Run("handling a report", func() { in.handle(ctx, report) })
	if !stop() {
		close(done)
		<-refused
	}
}

// refuseQueued refuses report, and then the reports from queue until done is closed.
func (in *intake) refuseQueued(report receivedReport, queue <-chan receivedReport, done <-chan struct{}) {
	in.replyRefusal(report, devices.ReasonUnavailable)
	for {
		select {
		case <-done:
			return
		case next, open := <-queue:
			if !open {
				<-done
				return
			}
			next.endWaiting()
			in.replyRefusal(next, devices.ReasonUnavailable)
		}
	}
}

// receiveReport enqueues, refuses or drops a received message. It never blocks, because paho calls it from the goroutine that also reads the
// broker's acknowledgements.
func (in *intake) receiveReport(received paho.Message) {
	device, err := devices.ParseReportTopic(received.Topic())
	switch {
	case err != nil:
		in.countUnhandled("bad_topic")
		received.Ack()
	case received.Retained():
		in.countUnhandled("retained") // a retained message was sent at an unknown time and may be outdated
		received.Ack()
	case !in.options.Pace.Take(device, devices.ViaSession):
		in.excess.Add(1)
		in.refuseWithRareAnswer(receivedReport{device: device, body: received.Payload(), ack: received.Ack}, pace.OverRate)
	default:
		in.enqueue(receivedReport{device: device, body: truncateBody(received.Payload()), ack: received.Ack})
	}
}

// truncateBody cuts body to MaxBody+1 bytes. A longer body is refused as too large, and must not stay in memory, because a broker may deliver up
// to 256 MiB.
func truncateBody(body []byte) []byte {
	if len(body) <= devices.MaxBody {
		return body
	}
	return bytes.Clone(body[:devices.MaxBody+1])
}

// enqueue puts a report into the queue of its worker, or refuses it if the queue is full or too many reports of the device wait. After stop
// it drops the report without an acknowledgement.
func (in *intake) enqueue(report receivedReport) {
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.stopped {
		return
	}
	var mayWait bool
	if report.endWaiting, mayWait = in.waiting.TryStart(string(report.device), false); !mayWait {
		in.refuseWithRareAnswer(report, string(devices.ReasonBusyServer))
		return
	}
	select {
	case in.queues[maphash.String(in.seed, string(report.device))%uint64(len(in.queues))] <- report:
	default:
		report.endWaiting()
		in.refuseWithRareAnswer(report, string(devices.ReasonBusyServer))
	}
}

// refuseWithRareAnswer refuses a report for a cause that one device can produce many times a second. It answers and decodes at most one such
// report of a device a second.
func (in *intake) refuseWithRareAnswer(report receivedReport, reason string) {
	in.countUnhandled(reason)
	if in.options.Pace.MayAnswer(report.device, devices.ViaSession) {
		in.outbox.enqueueOrDrop(newReplyMessage(report, in.refusalReply(report, devices.ReasonBusyServer)))
	}
	report.ack()
}

// replyRefusal answers and acknowledges a report without the handler. It does not wait for room in the outbox.
func (in *intake) replyRefusal(report receivedReport, reason devices.Reason) {
	in.countUnhandled(string(reason))
	in.outbox.enqueueOrDrop(newReplyMessage(report, in.refusalReply(report, reason)))
	report.ack()
}

func (in *intake) countUnhandled(reason string) { in.options.Handler.CountReport(transport, reason, 0) }

// refusalReply returns the reply to a report that this package refuses without the handler. It does not use the table devices.Refusals.
func (in *intake) refusalReply(report receivedReport, reason devices.Reason) devices.Reply {
	decoded, _ := devices.DecodeReport(report.body) // An error does not matter: the report is refused anyway.
	after := time.Duration((0.5 + rand.Float64()) * float64(in.options.BusyAfter))
	return devices.Reply{Re: decoded.ID, Reason: reason, Code: string(reason), ReportAfterMS: after.Milliseconds()}
}

// handle answers report. onSentOrLost of the reply acknowledges the report to the broker.
func (in *intake) handle(ctx context.Context, report receivedReport) {
	ctx, cancel := context.WithTimeout(ctx, in.options.HandleTimeout)
	defer cancel()
	reply := in.answer(ctx, report)
	m := newReplyMessage(report, reply)
	m.onSentOrLost = report.ack
	in.outbox.enqueueWhenRoom(m)
}

// answer returns the reply to report. A panic of the handler becomes a reply with the reason unavailable.
func (in *intake) answer(ctx context.Context, report receivedReport) (reply devices.Reply) {
	err := rescue.Call(func() error {
		reply = in.decodeAndHandle(ctx, report)
		return nil
	})
	if in.workers.OnPanic.Report("handling a report of "+string(report.device), err) != nil {
		in.countUnhandled(string(devices.ReasonUnavailable))
		return in.refusalReply(report, devices.ReasonUnavailable)
	}
	return reply
}

// decodeAndHandle passes the report to the handler. It trusts the device id of the topic, which the broker has checked.
func (in *intake) decodeAndHandle(ctx context.Context, received receivedReport) (reply devices.Reply) {
	started, handler := time.Now(), in.options.Handler
	decoded, err := devices.DecodeReport(received.body)
	if err == nil {
		reply, err = handler.HandleReport(ctx, devices.Caller{Device: received.device, Via: devices.ViaSession}, decoded)
	}
	if err != nil {
		refusal := devices.RefusalOf(err)
		reply = refusal.Reply(decoded.ID, handler.DelayAfterRefusal(refusal.DelayAs))
		if reply.Reason == devices.ReasonUnavailable {
			in.options.Logger.WarnContext(ctx, "report not answered", "device", received.device, "err", err)
		}
	}
	handler.CountReport(transport, string(reply.Reason), time.Since(started))
	return reply
}

func newReplyMessage(report receivedReport, reply devices.Reply) message {
	return message{topic: devices.ReplyTopic(report.device), qos: qosReply, body: reply.Encode()}
}

// stop waits until all queued reports are handled. If ctx ends first, it cancels the contexts of the handlers.
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
