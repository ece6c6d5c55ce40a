package app

import (
	"context"
	"log/slog"
	"time"
)

const (
	// embeddedFleet is the number of devices that the embedded mode can serve on two processors, if they report every 5 s.
	embeddedFleet = 5000
	// fleetWatchEvery is the interval at which the reporting devices are counted. A device is counted if it reported within the last
	// interval.
	fleetWatchEvery = time.Minute
)

// fleetSizeWatch warns if the fleet is larger than the embedded mode can serve.
type fleetSizeWatch struct {
	countReporting func(ctx context.Context, within time.Duration) (int, error) // counts the devices that have reported within a time
	log            *slog.Logger

	isTooLarge bool // the latest count was above embeddedFleet
}

// warnIfTooLarge is a pass that counts the reporting devices, and warns when they become too many.
func (w *fleetSizeWatch) warnIfTooLarge(ctx context.Context) error {
	n, err := w.countReporting(ctx, fleetWatchEvery)
	if err != nil {
		return err //nolint:wrapcheck // the error of the store names the operation
	}
	if n > embeddedFleet && !w.isTooLarge {
		w.log.WarnContext(ctx, "fleet too large for dispatcher dev: reports are refused and slots stay idle; run dispatcher serve",
			"devices", n, "carried", embeddedFleet)
	}
	w.isTooLarge = n > embeddedFleet
	return nil
}
