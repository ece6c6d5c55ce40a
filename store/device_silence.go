package store

import (
	"context"
	"fmt"
	"time"
)

// Silence is which of some devices were not heard of.
type Silence struct {
	Devices []Device // by id
	Looked  int      // devices that were looked at
	Last    string   // id of the last one; empty: there was none
}

// Silent looks at the devices that match, up to the filter's limit, by id, and
// returns the first shown of them that were not seen for so long, or never. What
// is looked at stays in the database.
func (s devices) Silent(ctx context.Context, f DeviceFilter, since time.Duration, shown int) (Silence, error) {
	q := query{text: `SELECT d.id, d.last_seen FROM devices d`}
	if err := f.where(&q); err != nil {
		return Silence{}, err
	}
	text, args := q.end(" ORDER BY d.id", f.Limit)
	type reading struct {
		Silence
		device Device
	}
	n := len(args)
	rows, err := collect(ctx, s.planned(), func(r *reading) []any {
		return append([]any{&r.Looked, opt(&r.Last)}, deviceDest(&r.device)...)
	}, `
		WITH looked AS (`+text+`),
		silent AS (SELECT id FROM looked WHERE last_seen IS NULL OR last_seen < {now} - `+fmt.Sprintf(`$%d * {ms} ORDER BY id LIMIT $%d)`, n+1, n+2)+`
		SELECT every.n, every.last, `+deviceColumns+`
		FROM (SELECT count(*) AS n, max(id) AS last FROM looked) AS every LEFT JOIN silent ON 1 = 1 LEFT JOIN devices d ON d.id = silent.id
		ORDER BY d.id`, append(args, since.Milliseconds(), shown)...)
	if err != nil {
		return Silence{}, fmt.Errorf("looking for silent devices: %w", err)
	}
	found := rows[0].Silence
	for _, r := range rows {
		if r.device.ID != "" {
			found.Devices = append(found.Devices, r.device)
		}
	}
	return found, nil
}
