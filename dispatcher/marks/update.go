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

// updateMarks brings the marks of all hashes to position `toPosition` in the news. positionByHash has the present positions of the hashes,
// and page has the news up to `toPosition`. If the update of a hash fails, the next call repeats it.
func (f *Follower) updateMarks(ctx context.Context, positionByHash [hashCount]int64, page store.NewsPage, toPosition int64) error {
	complete := page.Oldest - 1 // a hash below this position lacks news that no longer exist, and must be rebuilt
	for _, n := range page.Rows {
		if n.Batch == 0 && n.Device == "" && !n.ChangesWaitsOnly() { // the ledger was restored: any device may have work
			complete = n.ID
		}
	}
	var lost, outdated []int
	from := toPosition
	for part, c := range positionByHash {
		switch {
		case c < complete || c > page.Newest:
			lost = append(lost, part)
		case c < toPosition:
			outdated, from = append(outdated, part), min(from, c)
		}
	}
	if err := f.markOpenDevicesInLostHashes(ctx, lost, toPosition); err != nil {
		return err
	}
	if err := f.markDevicesOfNews(ctx, outdated, from, toPosition, page.Rows); err != nil {
		return err
	}
	f.minPosition = toPosition
	return nil
}

type devicesByHash [hashCount]map[string]struct{}

func (m *devicesByHash) add(device string) {
	part := marksHashIndex(device)
	if m[part] == nil {
		m[part] = make(map[string]struct{})
	}
	m[part][device] = struct{}{}
}

func (m *devicesByHash) devicesOfHashes(hashIndexes []int) []HashDevices {
	all := make([]HashDevices, len(hashIndexes))
	for i, part := range hashIndexes {
		all[i] = HashDevices{HashIndex: part, Names: slices.Collect(maps.Keys(m[part]))}
	}
	return all
}

// markDevicesOfNews marks the devices of news in the outdated hashes, and moves the positions of these hashes to `toPosition`. All of them must
// have reached `fromPosition`.
func (f *Follower) markDevicesOfNews(ctx context.Context, outdatedHashes []int, fromPosition, toPosition int64, news []store.News) error {
	if len(outdatedHashes) == 0 {
		return nil
	}
	var devices devicesByHash
	for _, n := range news {
		switch {
		case n.ID <= fromPosition || n.ChangesWaitsOnly():
		case n.Batch != 0:
			if err := f.config.Ledger.ForEachOpenDevice(ctx, n.Batch, devices.add); err != nil {
				return fmt.Errorf("marking devices: %w", err)
			}
		default:
			devices.add(n.Device)
		}
	}
	return f.config.Cache.MarkDevices(ctx, fromPosition, toPosition, devices.devicesOfHashes(outdatedHashes))
}

// markOpenDevicesInLostHashes marks the devices of all open tasks in lostHashes. The news up to `toPosition` must have been read before this
// call. A task that is created later has later news.
func (f *Follower) markOpenDevicesInLostHashes(ctx context.Context, lostHashes []int, toPosition int64) error {
	for ; len(lostHashes) > 0; lostHashes = lostHashes[min(len(lostHashes), hashesPerRebuild):] {
		now := lostHashes[:min(len(lostHashes), hashesPerRebuild)]
		wanted := [hashCount]bool{}
		for _, part := range now {
			wanted[part] = true
		}
		var devices devicesByHash
		err := f.config.Ledger.ForEachOpenDevice(ctx, 0, func(device string) {
			if wanted[marksHashIndex(device)] {
				devices.add(device)
			}
		})
		if err != nil {
			return fmt.Errorf("rebuilding marks: %w", err)
		}
		if err := f.config.Cache.MarkDevices(ctx, missingHash, toPosition, devices.devicesOfHashes(now)); err != nil {
			return err
		}
	}
	return nil
}
