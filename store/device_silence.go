package store

import (
	"context"
	"fmt"
	"time"
)

// SilentLooked is how many devices one reading of Silent or DevicesWith should look at.
const SilentLooked = lookedAt

// Silence is which of some devices were not heard of.
type Silence struct {
	Devices []Device // by id, up to the limit of the filter
	Beyond  string   // the last device that was looked at, if fewer were found and there may be others behind it
}

// Silent looks at so many of the devices that match, by id, for those that were not seen for
// so long, or never. It looks no further once it found as many as the limit of the filter.
// No index has the times: each report would move its device there.
func (s devices) Silent(ctx context.Context, f DeviceFilter, since time.Duration, looked int) (Silence, error) {
	return s.sift(ctx, f, `last_seen IS NULL OR last_seen < {now} - %s * {ms}`, since.Milliseconds(), looked)
}

// sift looks at so many of the devices that match for those with a condition on their ids and
// last_seen; %s in it stands for value.
func (s devices) sift(ctx context.Context, f DeviceFilter, cond string, value any, looked int) (Silence, error) {
	q := query{text: `SELECT d.id, d.last_seen FROM devices d`}
	if err := f.where(&q); err != nil {
		return Silence{}, err
	}
	text := q.whole() + " ORDER BY d.id LIMIT " + q.arg(looked)
	cond = fmt.Sprintf(cond, q.arg(value))
	limit := q.arg(clampLimit(f.Limit))
	type reading struct {
		looked int
		last   string
		device Device
	}
	var rows []reading
	err := s.selecting(ctx, f, func(in session) (err error) {
		rows, err = collect(ctx, in, func(r *reading) []any {
			return append([]any{&r.looked, opt(&r.last)}, deviceDest(&r.device)...)
		}, `
		WITH sifted AS (
			SELECT id FROM (`+text+`) AS looked WHERE `+cond+` ORDER BY id LIMIT `+limit+`)
		SELECT every.n, every.last, `+deviceColumns+`
		FROM (SELECT count(*) AS n, max(id) AS last FROM (`+text+`) AS looked WHERE (SELECT count(*) FROM sifted) < `+limit+`) AS every
			LEFT JOIN sifted ON 1 = 1 LEFT JOIN devices d ON d.id = sifted.id
		ORDER BY d.id`, q.args...)
		return err
	})
	if err != nil {
		return Silence{}, fmt.Errorf("looking through devices: %w", err)
	}
	var found Silence
	if rows[0].looked == looked {
		found.Beyond = rows[0].last
	}
	for _, r := range rows {
		if r.device.ID != "" {
			found.Devices = append(found.Devices, r.device)
		}
	}
	return found, nil
}
