package marks

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/fleetslots/dispatcher/store"
)

// atOnce is the number of hashes that are rebuilt from one read of all open tasks. It limits the devices in
// memory to a quarter of the devices with an open task.
const atOnce = parts / 4

// update brings the marks of all hashes to position `to`, using the news that were read up to that position.
// It skips a hash that loses its data during the update; the next call rebuilds it. If a call fails, the
// remaining hashes also wait for the next call.
func (f *Follower) update(ctx context.Context, come [parts]int64, read store.NewsRead, to int64) error {
	complete := read.Oldest - 1 // a hash below this position lacks news that no longer exist
	for _, n := range read.Rows {
		if n.Batch == 0 && n.Device == "" {
			complete = n.ID
		}
	}
	var lost, behind []int
	from := to
	for part, c := range come {
		switch {
		case c < complete || c > read.Newest:
			lost = append(lost, part)
		case c < to:
			behind, from = append(behind, part), min(from, c)
		}
	}
	if err := f.rebuild(ctx, lost, to); err != nil {
		return err
	}
	if err := f.mark(ctx, behind, from, to, read.Rows); err != nil {
		return err
	}
	f.come = to
	return nil
}

// marked holds the devices to mark, by hash.
type marked [parts]map[string]struct{}

func (m *marked) add(device string) {
	part := partOf(device)
	if m[part] == nil {
		m[part] = make(map[string]struct{})
	}
	m[part][device] = struct{}{}
}

// of returns an entry for each hash in the list `which`, in the order of the list.
func (m *marked) of(which []int) []Devices {
	all := make([]Devices, len(which))
	for i, part := range which {
		all[i] = Devices{Part: part, Names: slices.Collect(maps.Keys(m[part]))}
	}
	return all
}

// mark marks the devices of the news for the hashes in behind, which have all reached position `from`.
func (f *Follower) mark(ctx context.Context, behind []int, from, to int64, news []store.News) error {
	if len(behind) == 0 {
		return nil
	}
	var devices marked
	for _, n := range news {
		switch {
		case n.ID <= from:
		case n.Batch != 0:
			if err := f.config.Ledger.EachOpen(ctx, n.Batch, devices.add); err != nil {
				return fmt.Errorf("marking devices: %w", err)
			}
		default:
			devices.add(n.Device)
		}
	}
	return f.config.Cache.Mark(ctx, from, to, devices.of(behind)) //nolint:wrapcheck // the cache's own
}

// rebuild marks the devices of all open tasks, for hashes that lack marks. The news up to position `to` must
// be read before the tasks are read: a task that is created later has news of its own.
func (f *Follower) rebuild(ctx context.Context, lost []int, to int64) error {
	for ; len(lost) > 0; lost = lost[min(len(lost), atOnce):] {
		now := lost[:min(len(lost), atOnce)]
		wanted := [parts]bool{}
		for _, part := range now {
			wanted[part] = true
		}
		var devices marked
		err := f.config.Ledger.EachOpen(ctx, 0, func(device string) {
			if wanted[partOf(device)] {
				devices.add(device)
			}
		})
		if err != nil {
			return fmt.Errorf("rebuilding marks: %w", err)
		}
		if err := f.config.Cache.Mark(ctx, unknown, to, devices.of(now)); err != nil {
			return err //nolint:wrapcheck // the cache's own
		}
	}
	return nil
}
