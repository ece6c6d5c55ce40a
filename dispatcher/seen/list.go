package seen

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// MaxRecent is the maximum number of devices in the list.
const MaxRecent = 1000

const key = "recent:devices"

//go:embed add.lua
var addLua string

// ErrUnavailable is returned if Redis does not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Sighting is a device and the time of its last report.
type Sighting struct {
	Device string
	At     time.Time // truncated to milliseconds; all times must be of one clock
}

// List is the list of the devices that reported last. Several replicas may use it concurrently.
type List struct {
	client redis.UniversalClient
	add    *redis.Script
}

// NewList returns the List of the devices that reported last, in the Redis of client.
func NewList(client redis.UniversalClient) *List {
	return &List{client: client, add: redis.NewScript(addLua)}
}

// Add records reports of devices, in any order. The latest time of each device counts. It returns ErrUnavailable if Redis does not answer.
func (l *List) Add(ctx context.Context, sightings []Sighting) error {
	if len(sightings) == 0 {
		return nil
	}
	args := append(make([]any, 0, 1+2*len(sightings)), MaxRecent)
	for _, s := range sightings {
		args = append(args, s.At.UnixMilli(), s.Device)
	}
	if err := l.add.Run(ctx, l.client, []string{key}, args...).Err(); err != nil {
		return fmt.Errorf("recording last-seen times: %w: %w", ErrUnavailable, err)
	}
	return nil
}

// Newest returns the devices of the list, newest first. It returns ErrUnavailable if Redis does not answer.
func (l *List) Newest(ctx context.Context) ([]Sighting, error) {
	entries, err := l.client.ZRevRangeWithScores(ctx, key, 0, MaxRecent-1).Result()
	if err != nil {
		return nil, fmt.Errorf("reading last-seen times: %w: %w", ErrUnavailable, err)
	}
	seen := make([]Sighting, len(entries))
	for i, e := range entries {
		device, _ := e.Member.(string) // members are strings
		seen[i] = Sighting{Device: device, At: time.UnixMilli(int64(e.Score)).UTC()}
	}
	return seen, nil
}
