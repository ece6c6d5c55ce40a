package marks

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/fleetslots/dispatcher/store"
)

// hashesPerRebuild is the number of hashes whose marks are rebuilt from one read of all open tasks. It is a quarter of the hashes, so that only
// about a quarter of the devices with an open task are in memory at once.
const hashesPerRebuild = hashCount / 4

// updateMarks brings the marks of all hashes to position `to` in the news. positions are the present positions of the hashes, and page has the news
// up to `to`. If the update of a hash fails, the next call repeats it.
func (f *Follower) updateMarks(ctx context.Context, positions [hashCount]int64, page store.NewsPage, to int64) error {
	complete := page.Oldest - 1 // a hash below this position lacks news that no longer exist, and must be rebuilt
	for _, n := range page.Rows {
		if n.Batch == 0 && n.Device == "" && !n.ChangesWaitsOnly() { // the ledger was restored: any device may have work
			complete = n.ID
		}
	}
	var lost, outdated []int
	from := to
	for part, c := range positions {
		switch {
		case c < complete || c > page.Newest:
			lost = append(lost, part)
		case c < to:
			outdated, from = append(outdated, part), min(from, c)
		}
	}
	if err := f.rebuild(ctx, lost, to); err != nil {
		return err
	}
	if err := f.markNews(ctx, outdated, from, to, page.Rows); err != nil {
		return err
	}
	f.minPosition = to
	return nil
}

type devicesByHash [hashCount]map[string]struct{}

func (m *devicesByHash) add(device string) {
	part := hashIndex(device)
	if m[part] == nil {
		m[part] = make(map[string]struct{})
	}
	m[part][device] = struct{}{}
}

func (m *devicesByHash) hashEntries(indexes []int) []HashDevices {
	all := make([]HashDevices, len(indexes))
	for i, part := range indexes {
		all[i] = HashDevices{HashIndex: part, Names: slices.Collect(maps.Keys(m[part]))}
	}
	return all
}

// markNews marks the devices of news in the outdated hashes, and moves the positions of these hashes to `to`. All of them must have reached
// position `from`.
func (f *Follower) markNews(ctx context.Context, outdated []int, from, to int64, news []store.News) error {
	if len(outdated) == 0 {
		return nil
	}
	var devices devicesByHash
	for _, n := range news {
		switch {
		case n.ID <= from || n.ChangesWaitsOnly():
		case n.Batch != 0:
			if err := f.config.Ledger.ForEachOpenDevice(ctx, n.Batch, devices.add); err != nil {
				return fmt.Errorf("marking devices: %w", err)
			}
		default:
			devices.add(n.Device)
		}
	}
	return f.config.Cache.Mark(ctx, from, to, devices.hashEntries(outdated))
}

// rebuild marks the devices of all open tasks in the lost hashes. The news up to position `to` must have been read before rebuild is called. A
// task that is created later has later news.
func (f *Follower) rebuild(ctx context.Context, lost []int, to int64) error {
	for ; len(lost) > 0; lost = lost[min(len(lost), hashesPerRebuild):] {
		now := lost[:min(len(lost), hashesPerRebuild)]
		wanted := [hashCount]bool{}
		for _, part := range now {
			wanted[part] = true
		}
		var devices devicesByHash
		err := f.config.Ledger.ForEachOpenDevice(ctx, 0, func(device string) {
			if wanted[hashIndex(device)] {
				devices.add(device)
			}
		})
		if err != nil {
			return fmt.Errorf("rebuilding marks: %w", err)
		}
		if err := f.config.Cache.Mark(ctx, missingHash, to, devices.hashEntries(now)); err != nil {
			return err
		}
	}
	return nil
}
