package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// noisyRewriteEvery is the interval at which the ledger entry of a device that stays noisy is renewed. It is shorter
	// than store.NoisyFor.
	noisyRewriteEvery = time.Minute
	// maxNoisyWrites is the maximum number of noisy devices that one run of the pass writes. The other devices follow in the next runs.
	maxNoisyWrites = 100
)

// noisyDeviceWatch records the noisy devices of this replica in the ledger. A noisy device exceeds its limit of reports.
type noisyDeviceWatch struct {
	limiter *pace.Limiter
	limit   string // reports a second, for people
	ledger  *store.Store
	suspend func(ctx context.Context, device devices.ID) error // disables the account of the device at the broker for a while; nil if accounts are not suspended
	log     *slog.Logger
	now     func() time.Time

	written map[string]time.Time // by device and way to authenticate: when the noisy device was last written
}

func (a *App) newNoisyDeviceWatch(ledger *store.Store) *noisyDeviceWatch {
	w := &noisyDeviceWatch{limiter: a.pace, limit: a.config.ReportRate, ledger: ledger, log: a.log, now: time.Now}
	if a.config.MQTTProvision == provisionDynsec && a.config.MQTTSuspend > 0 {
		w.suspend = func(ctx context.Context, device devices.ID) error {
			return a.dispatcher.Devices.SuspendAccount(ctx, device, a.config.MQTTSuspend)
		}
	}
	return w
}

// recordNoisyDevices is a pass that records in the ledger each noisy device that it has not recorded within the last
// noisyRewriteEvery.
func (w *noisyDeviceWatch) recordNoisyDevices(ctx context.Context) (err error) {
	noisy, now, writes := w.limiter.Noisy(), w.now(), 0
	written := make(map[string]time.Time, len(noisy))
	for _, n := range noisy {
		key := viaName(n.Via) + " " + string(n.Device)
		at, found := w.written[key]
		if isDue := !found || now.Sub(at) >= noisyRewriteEvery; isDue && writes < maxNoisyWrites {
			writes++
			failed := w.recordNoisyDevice(ctx, n)
			at, found, err = now, failed == nil, errors.Join(err, failed)
		}
		if found {
			written[key] = at
		}
	}
	w.written = written
	return err
}

// recordNoisyDevice records one noisy device in the ledger, and suspends its account if it reports over MQTT.
func (w *noisyDeviceWatch) recordNoisyDevice(ctx context.Context, noisy pace.NoisyDevice) error {
	via := viaName(noisy.Via)
	isNew, err := w.ledger.RecordNoisy(ctx, string(noisy.Device), fmt.Sprintf("rate=%d/s limit=%s/s via=%s", noisy.Rate, w.limit, via))
	if err != nil {
		return err //nolint:wrapcheck // the error of the store names the operation
	}
	if isNew {
		w.log.WarnContext(ctx, "a device reports too often; its reports above the limit are refused", "device", noisy.Device, "rate", noisy.Rate, "limit", w.limit, "via", via)
	}
	if w.suspend == nil || noisy.Via != devices.ViaSession {
		return nil
	}
	return w.suspend(ctx, noisy.Device)
}

// viaName returns the name, for people, of the way in which a device authenticates.
func viaName(via devices.Via) string {
	switch via {
	case devices.ViaSession:
		return "mqtt"
	case devices.ViaFleetToken:
		return "fleet_token"
	}
	return "own_token"
}

// newNoisyDeviceGauge returns a metric with the number of devices that are noisy at this replica.
func newNoisyDeviceGauge(limiter *pace.Limiter) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "dispatcher_devices_noisy", Help: "Devices that have reported more often than report_rate for 10 s without a break.",
	}, func() float64 { return float64(len(limiter.Noisy())) })
}
