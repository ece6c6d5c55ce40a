package parked

import (
	"context"
	"crypto/rand"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed newest.lua
var newestLua string

// ErrUnavailable: Redis did not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Call asks the parked report of a device to look again: a place of Pool is
// offered to it, since Age. Without a pool there is other news.
type Call struct {
	Device string        `json:"device"`
	Pool   string        `json:"pool,omitempty"`
	Age    time.Duration `json:"age,omitempty"` // of the news, when it is sent; below 0: unknown
}

// Board is what one replica shares with the others. It is safe for concurrent
// use.
type Board struct {
	client  redis.UniversalClient
	newest  *redis.Script
	channel string
	replica string
	quiet   time.Duration // after which a connection without a message is tried
}

// New returns the board of a replica in the Redis of client.
func New(client redis.UniversalClient) *Board {
	return &Board{
		client: client, newest: redis.NewScript(newestLua), replica: rand.Text(),
		// Channels are of a whole server, keys of one of its databases.
		channel: "parked:" + strconv.Itoa(database(client)), quiet: 5 * time.Second,
	}
}

func database(client redis.UniversalClient) int {
	if one, ok := client.(*redis.Client); ok {
		return one.Options().DB
	}
	return 0
}

// Newest makes a report that this replica parks the newest of its device
// anywhere, and returns its number: above those of all before. It is remembered
// for a while, at least 1 ms. ErrUnavailable.
func (b *Board) Newest(ctx context.Context, device string, remembered time.Duration) (int64, error) {
	text, err := b.newest.Run(ctx, b.client, []string{"parked:{" + device + "}"}, b.replica, remembered.Milliseconds(), b.channel, device).Text()
	if err != nil {
		return 0, fmt.Errorf("parking: %w: %w", ErrUnavailable, err)
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("parking: %q is no number: %w", text, err)
	}
	return number, nil
}

// Wake tells all replicas: who has one of the reports lets it look again. It
// does not say whether anybody has. ErrUnavailable.
func (b *Board) Wake(ctx context.Context, calls []Call) error {
	if len(calls) == 0 {
		return nil
	}
	text, err := json.Marshal(calls)
	if err != nil {
		return fmt.Errorf("waking parked reports: %w", err)
	}
	if err := b.client.Publish(ctx, b.channel, append([]byte("wake "), text...)).Err(); err != nil {
		return fmt.Errorf("waking parked reports: %w: %w", ErrUnavailable, err)
	}
	return nil
}
