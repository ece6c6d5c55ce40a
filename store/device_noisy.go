package store

import (
	"context"
	"time"
)

// NoisyFor is the time for which a device counts as noisy after it was last recorded as noisy. A device is noisy if it reports far more
// often than it may.
const NoisyFor = 5 * time.Minute

// IsNoisy reports whether the device counts as noisy at the time now, by the clock of the ledger.
func (d Device) IsNoisy(now time.Time) bool {
	return d.NoisyAt != nil && now.Sub(*d.NoisyAt) < NoisyFor
}

// RecordNoisy records that a device is noisy now. isNew is true if the device did not count as noisy before; then RecordNoisy also writes
// the event device.noisy with this detail. If the device is not registered, nothing is recorded.
func (s devices) RecordNoisy(ctx context.Context, device, detail string) (isNew bool, err error) {
	defer describe(&err, "recording that device %s is noisy", device)
	err = s.write(ctx, func(tx session) error {
		changed, err := tx.exec(ctx, `UPDATE devices SET noisy_at = {now} WHERE id = $1 AND (noisy_at IS NULL OR noisy_at <= {now} - $2 * {ms})`, device, NoisyFor.Milliseconds())
		if isNew = changed > 0; err != nil {
			return err
		}
		if isNew {
			return tx.recordEvent(ctx, Event{Kind: "device.noisy", Actor: "dispatcher", Device: device, Detail: detail})
		}
		_, err = tx.exec(ctx, `UPDATE devices SET noisy_at = {now} WHERE id = $1`, device)
		return err
	})
	return isNew, err
}

// whereNoisy adds the condition of the field Noisy to q. The condition NOT NULL repeats the condition of the partial index devices_noisy,
// because SQLite uses the index only if the statement repeats it.
func (f DeviceFilter) whereNoisy(q *query) {
	switch {
	case f.Noisy == nil:
	case *f.Noisy:
		q.where("d.noisy_at IS NOT NULL AND d.noisy_at > {now} - %s * {ms}", NoisyFor.Milliseconds())
	default:
		q.where("(d.noisy_at IS NULL OR d.noisy_at <= {now} - %s * {ms})", NoisyFor.Milliseconds())
	}
}
