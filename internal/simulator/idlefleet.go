package simulator

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// DefaultConnections is the number of connections that an idle fleet shares.
const DefaultConnections = 500

// RunIdle lets a fleet without tasks report to a running dispatcher until the timeout or the end of ctx. Each device
// reports once in each period, at evenly spread times, and ignores the time that the server asks for. RunIdle writes a
// progress line once a second. The devices share Config.Connections connections, and each device has at most one report
// in flight. A slow answer delays the next devices of its connection, and RunIdle measures this delay. RunIdle returns an
// error if the run could not be carried out. IdleSummary.Err evaluates a completed run.
func RunIdle(ctx context.Context, config Config, progress io.Writer) (IdleSummary, error) {
	f, err := newIdleFleet(ctx, config.withDefaults(), progress)
	if err != nil {
		return IdleSummary{}, fmt.Errorf("simulation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.config.Timeout)
	defer cancel()
	f.run(ctx)
	return f.summary(), nil
}

type idleFleet struct {
	config   Config
	client   *http.Client
	tokens   []string // one token for each device; "" means the fleet token; only the goroutine of the device's connection uses an entry
	boot     string   // makes the report ids of different runs different
	progress printer
	tally    idleTally
	started  time.Time
	elapsed  time.Duration
}

// newIdleFleet registers the devices of config and returns their fleet. It writes progress lines to progress.
func newIdleFleet(ctx context.Context, config Config, progress io.Writer) (*idleFleet, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	config.Connections = min(config.Connections, config.Devices)
	f := &idleFleet{
		config: config, client: newHTTPClient(config.Connections), boot: strconv.FormatInt(time.Now().UnixNano(), 36),
		progress: printer{to: progress}, tally: idleTally{all: newAnswerCounts(), recent: newAnswerCounts()},
	}
	operator, err := NewOperator(config.URL, config.OperatorToken)
	if err != nil {
		return nil, err
	}
	if f.tokens, err = config.registerDevices(ctx, operator, &f.progress); err != nil {
		return nil, err
	}
	if err := config.checkAdmission(ctx, f.tokens); err != nil {
		return nil, err
	}
	if f.tokens == nil {
		f.tokens = make([]string, config.Devices)
	}
	return f, nil
}

func (f *idleFleet) run(ctx context.Context) {
	defer f.client.CloseIdleConnections()
	f.started = time.Now()
	var all sync.WaitGroup
	for n := range f.config.Connections {
		all.Go(func() { f.runConnection(ctx, n) })
	}
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			f.showProgress()
		case <-ctx.Done():
		}
	}
	f.elapsed = time.Since(f.started)
	all.Wait()
}

// runConnection sends the reports of all devices of one connection, one after the other, each at its due time.
func (f *idleFleet) runConnection(ctx context.Context, connectionIndex int) {
	replicas := newReplicaURLs(f.config.URL, connectionIndex)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for round := 0; ; round++ {
		for device := connectionIndex; device < f.config.Devices; device += f.config.Connections {
			timer.Reset(time.Until(f.reportDueTime(round, device)))
			select {
			case <-timer.C:
				f.sendReport(ctx, replicas, round, device)
			case <-ctx.Done():
				return
			}
		}
	}
}

func (f *idleFleet) reportDueTime(round, deviceIndex int) time.Time {
	share := float64(deviceIndex) / float64(f.config.Devices)
	return f.started.Add(time.Duration((float64(round) + share) * float64(f.config.Period)))
}

// sendReport sends the report of a device in a round and counts the answer. If ctx ends during the request, nothing is
// counted.
func (f *idleFleet) sendReport(ctx context.Context, replicas *replicaURLs, round, deviceIndex int) {
	token := cmp.Or(f.tokens[deviceIndex], f.config.FleetToken)
	link := newHTTPLink(f.client, replicas, deviceID(f.config.DevicePrefix, deviceIndex), token)
	outgoing := report{ID: f.boot + "-" + strconv.Itoa(round*f.config.Devices+deviceIndex)}
	base, position := replicas.current()
	began := time.Now()
	a := link.postReport(ctx, base+link.path, outgoingReport{id: outgoing.ID, body: outgoing.encode()})
	if ctx.Err() != nil {
		return
	}
	if a.kind == failed {
		replicas.failOver(position)
	}
	if a.reply.Credential != "" {
		f.tokens[deviceIndex] = a.reply.Credential
	}
	f.tally.add(outgoing, a, time.Since(began))
}
