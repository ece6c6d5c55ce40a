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

//go:embed gone.lua
var goneLua string

// ErrUnavailable: Redis did not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Call asks the parked report of a device to look again: a slot of Pool is
// offered to it. Without a pool there is other news.
type Call struct {
	Device string        `json:"device"`
	Pool   string        `json:"pool,omitempty"`
	Age    time.Duration `json:"age,omitempty"` // of the offer, when it is sent; 0: unknown
}

// Report is a parked report, as Newest numbered it.
type Report struct {
	Device string
	Number int64
}

// goneRemembered is how long a gap is known: what follows from it is said within.
const goneRemembered = 10 * time.Second

func keyOf(device string) string { return "parked:{" + device + "}" }

// Board is what one replica shares with the others. It is safe for concurrent
// use.
type Board struct {
	client  redis.UniversalClient
	newest  *redis.Script
	gone    *redis.Script
	channel string
	replica string
	quiet   time.Duration // after which a connection without a message is tried
}

// New returns the board of a replica in the Redis of client, and in this database of it.
func New(client redis.UniversalClient, database int) *Board {
	return &Board{
		client: client, newest: redis.NewScript(newestLua), gone: redis.NewScript(goneLua), replica: rand.Text(),
		// Channels are of a whole server, keys of one of its databases.
		channel: "parked:" + strconv.Itoa(database), quiet: 5 * time.Second,
	}
}

// Newest makes a report that this replica parks the newest of its device
// anywhere, and returns its number: above those of all before. gap: the connection
// of the one before ended just now, and what was said of that may still be on its
// way. It is remembered for a while, at least 1 ms. ErrUnavailable.
func (b *Board) Newest(ctx context.Context, device string, remembered time.Duration) (number int64, gap bool, err error) {
	reply, err := b.newest.Run(ctx, b.client, []string{keyOf(device)}, b.replica, remembered.Milliseconds(), b.channel, device).Slice()
	if err != nil {
		return 0, false, fmt.Errorf("parking: %w: %w", ErrUnavailable, err)
	}
	if len(reply) != 2 {
		return 0, false, fmt.Errorf("parking: reply %v", reply)
	}
	text, _ := reply[0].(string)
	if number, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, false, fmt.Errorf("parking: %q is no number: %w", text, err)
	}
	return number, reply[1] == int64(1), nil
}

// Gone notes that the connections of parked reports have ended, for Newest to say
// so, and returns those of which the device was not parked anew. ErrUnavailable.
func (b *Board) Gone(ctx context.Context, reports []Report) (gone []Report, err error) {
	replies := make([]*redis.Cmd, len(reports))
	_, err = b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, r := range reports { // by its text: no reply of a pipeline says that a script is missing in time
			replies[i] = b.gone.Eval(ctx, p, []string{keyOf(r.Device)}, r.Number, goneRemembered.Milliseconds())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("noting connections that ended: %w: %w", ErrUnavailable, err)
	}
	for i, r := range reports {
		if replies[i].Val() == int64(1) {
			gone = append(gone, r)
		}
	}
	return gone, nil
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
