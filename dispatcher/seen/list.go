package seen

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Kept is how many devices are remembered.
const Kept = 1000

// key of the list; one, so one node of a Cluster.
const key = "recent:devices"

//go:embed add.lua
var addLua string

// ErrUnavailable: Redis did not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Sighting is a device that was seen.
type Sighting struct {
	Device string
	At     time.Time // cut to milliseconds; by one clock for all
}

// List is the list of the devices seen last. It is safe for concurrent use,
// also by several replicas.
type List struct {
	client redis.UniversalClient
	add    *redis.Script
}

// NewList returns the list in the Redis of client.
func NewList(client redis.UniversalClient) *List {
	return &List{client: client, add: redis.NewScript(addLua)}
}

// Add notes devices, in any order; the latest time of each counts. Of more than
// Kept only the newest are sent. ErrUnavailable.
func (l *List) Add(ctx context.Context, seen []Sighting) error {
	if len(seen) == 0 {
		return nil
	}
	newest := slices.SortedFunc(slices.Values(seen), func(a, b Sighting) int { return b.At.Compare(a.At) })
	newest = newest[:min(len(newest), Kept)]
	args := make([]any, 0, 1+2*len(newest))
	args = append(args, Kept)
	for _, s := range newest {
		args = append(args, s.At.UnixMilli(), s.Device)
	}
	if err := l.add.Run(ctx, l.client, []string{key}, args...).Err(); err != nil {
		return fmt.Errorf("noting who was seen: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// Newest returns all that is remembered, at most Kept, newest first.
// ErrUnavailable.
func (l *List) Newest(ctx context.Context) ([]Sighting, error) {
	entries, err := l.client.ZRevRangeWithScores(ctx, key, 0, Kept-1).Result()
	if err != nil {
		return nil, fmt.Errorf("reading who was seen last: %w: %w", ErrUnavailable, err)
	}
	seen := make([]Sighting, len(entries))
	for i, e := range entries {
		device, _ := e.Member.(string) // members are text
		seen[i] = Sighting{Device: device, At: time.UnixMilli(int64(e.Score)).UTC()}
	}
	return seen, nil
}
