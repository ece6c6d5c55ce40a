package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// maxHits is the maximum number of hits in one part of a result.
const maxHits = 10

type findStore interface {
	poolStore
	batchStore
	taskStore
	deviceStore
	TasksByErrorPrefix(ctx context.Context, prefix string, limit int) ([]store.Task, error)
}

type finder struct{ ledger findStore }

func (f *finder) register(r *routes) {
	register(r, r.limitListReads(r.describeOperation("find")), f.find)
}

func (f *finder) find(ctx context.Context, in *operators.FindQuery) (operators.Found, error) {
	text := strings.TrimSpace(in.Text)
	if text == "" {
		return operators.Found{}, invalidProblem("q: must have 1-200 characters, not only spaces")
	}
	found := operators.Found{Text: text}
	for _, search := range []struct {
		part *operators.FoundPart
		find func(context.Context, string) (operators.FoundPart, error)
	}{
		{&found.Pools, f.findPools},
		{&found.Batches, f.findBatches},
		{&found.Devices, f.findDevices},
		{&found.Tagged, f.findDevicesByTag},
		{&found.Failed, f.findFailedTasks},
		{&found.Exact, f.findExactMatches},
	} {
		part, err := search.find(ctx, text)
		if err != nil {
			return operators.Found{}, err
		}
		*search.part = truncateHits(part)
	}
	return found, nil
}

func truncateHits(found operators.FoundPart) operators.FoundPart {
	if found.Hits == nil {
		found.Hits = []operators.Hit{}
	}
	if len(found.Hits) > maxHits {
		found.Hits, found.More = found.Hits[:maxHits], true
	}
	return found
}

// findExactMatches finds the task, batch, device and pool with exactly this number, id or name.
func (f *finder) findExactMatches(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	add := func(hit operators.Hit, err error) error {
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		hits.Hits = append(hits.Hits, hit)
		return err
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
		task, _, _, err := f.ledger.Task(ctx, n)
		if err := add(operators.Hit{Kind: "task", ID: formatDecimal(n), Text: cmp.Or(task.Error, string(task.State))}, err); err != nil {
			return hits, err
		}
		batch, err := f.ledger.Batch(ctx, n)
		if err := add(newBatchHit(batch), err); err != nil {
			return hits, err
		}
	}
	if isValidDeviceID(text) {
		device, err := f.ledger.Device(ctx, text)
		if err := add(newDeviceHit(device), err); err != nil {
			return hits, err
		}
	}
	if devices.CheckPoolName(text) == nil {
		pool, err := f.ledger.Pool(ctx, text)
		if err := add(operators.Hit{Kind: "pool", ID: text, Text: fmt.Sprintf("%d slots", pool.Capacity)}, err); err != nil {
			return hits, err
		}
	}
	return hits, nil
}

// findPools finds the pools with the text in their names. Pools whose names begin with the text come first.
func (f *finder) findPools(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	ranks, err := f.ledger.PoolRanks(ctx, text)
	for _, r := range ranks {
		hits.Hits = append(hits.Hits, operators.Hit{Kind: "pool", ID: r.Name, Text: fmt.Sprintf("%d of %d held, tasks wait: %d", r.Held, r.Capacity, r.Pending)})
	}
	position := func(h operators.Hit) int { return strings.Index(strings.ToLower(h.ID), strings.ToLower(text)) }
	slices.SortStableFunc(hits.Hits, func(a, b operators.Hit) int { return min(position(a), 1) - min(position(b), 1) })
	return hits, err
}

// findBatches finds batches with the text in their names, newest first.
func (f *finder) findBatches(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	found, bound, err := f.ledger.BatchesNamed(ctx, text, store.BatchFilter{}, 0, maxHits+1)
	for _, b := range found {
		hits.Hits = append(hits.Hits, newBatchHit(b))
	}
	if bound.More && len(found) <= maxHits {
		hits.Scanned = store.NamedSearchLimit
	}
	return hits, err
}

// findDevices finds by the primary key the devices whose ids begin with the text. If these are fewer than maxHits, it adds devices whose
// ids contain the text elsewhere. For these it reads only a limited number of devices, in the order of ids.
func (f *finder) findDevices(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	if !isValidDeviceID("a" + text) {
		return hits, nil // no id can contain the text
	}
	begin, err := f.ledger.Devices(ctx, store.DeviceFilter{Prefix: text, Limit: maxHits + 1})
	if err != nil {
		return hits, err
	}
	for _, d := range begin {
		hits.Hits = append(hits.Hits, newDeviceHit(d))
	}
	if len(begin) > maxHits {
		return hits, nil
	}
	within, err := f.ledger.DevicesWithIDPart(ctx, store.DeviceFilter{Limit: 2*maxHits + 1}, text, store.DeviceSearchLimit)
	for _, d := range within.Devices {
		if !strings.HasPrefix(d.ID, text) {
			hits.Hits = append(hits.Hits, newDeviceHit(d))
		}
	}
	if within.ContinueAfter != "" && len(hits.Hits) <= maxHits {
		hits.Scanned = store.DeviceSearchLimit
	}
	return hits, err
}

// findDevicesByTag finds the devices with the tag name:value. If the text has another form, it finds nothing.
func (f *finder) findDevicesByTag(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	name, value, ok := strings.Cut(text, ":")
	if !ok || name == "" {
		return hits, nil
	}
	found, err := f.ledger.Devices(ctx, store.DeviceFilter{Tags: map[string]string{name: value}, Limit: maxHits + 1})
	for _, d := range found {
		hits.Hits = append(hits.Hits, newDeviceHit(d))
	}
	return hits, err
}

// findFailedTasks finds tasks that failed or timed out and whose errors begin with the text.
func (f *finder) findFailedTasks(ctx context.Context, text string) (hits operators.FoundPart, err error) {
	found, err := f.ledger.TasksByErrorPrefix(ctx, text, maxHits+1)
	for _, t := range found {
		hits.Hits = append(hits.Hits, operators.Hit{Kind: "task", ID: formatDecimal(t.ID), Text: t.Error})
	}
	return hits, err
}

func isValidDeviceID(text string) bool {
	_, err := devices.ParseID(text)
	return err == nil
}

func newBatchHit(batch store.Batch) operators.Hit {
	return operators.Hit{Kind: "batch", ID: formatDecimal(batch.ID), Text: batch.Name}
}

func newDeviceHit(device store.Device) operators.Hit {
	return operators.Hit{Kind: "device", ID: device.ID, Text: strings.Join(formatTagPairs(device.Tags), " ")}
}

// formatTagPairs returns the tags as name:value, in the order of their names.
func formatTagPairs(tags map[string]string) []string {
	words := make([]string, 0, len(tags))
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		words = append(words, name+":"+tags[name])
	}
	return words
}
