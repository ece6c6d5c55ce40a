package marks

import (
	"cmp"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// parts is the number of hashes that the marks are spread over, and so over the nodes of a Cluster.
const parts = 256

// upto is the field of a hash that stores the position in the news that its marks include. No device has this
// name.
const upto = ""

const (
	unknown = -1 // position of a hash that does not exist
	unread  = -2 // position of a hash that could not be read
)

var (
	//go:embed mark.lua
	markLua string
	//go:embed unmark.lua
	unmarkLua string
)

// ErrUnavailable is returned if Redis does not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Hashes stores the marks in Redis. It is safe for concurrent use, also by several replicas.
type Hashes struct {
	client       redis.UniversalClient
	mark, unmark *redis.Script
	breakers     *redisconn.Breakers
}

// NewHashes returns Hashes that stores the marks in the Redis of client.
func NewHashes(client redis.UniversalClient) *Hashes {
	now := time.Now //nolint:forbidigo // elapsed time, which no server can tell
	return &Hashes{client: client, mark: redis.NewScript(markLua), unmark: redis.NewScript(unmarkLua), breakers: redisconn.NewBreakers(client, now)}
}

// Sight is the result of reading the mark of one device.
type Sight struct {
	Version string // version of the mark; empty if the device has no mark
	Upto    int64  // position of its hash; negative if unknown
}

func partOf(device string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(device)) // never fails
	return int(h.Sum32() % parts)
}

func key(part int) string { return "marks:" + strconv.Itoa(part) }

// Look reads the marks of devices in one round trip. If Redis does not answer for a device, its Sight has no
// Version and its Upto is unread.
func (h *Hashes) Look(ctx context.Context, devices []string) []Sight {
	sights := make([]Sight, len(devices))
	for i := range sights {
		sights[i].Upto = unread
	}
	_ = h.breakers.Do(ctx, key(0), 1, func() error { // a mark that cannot be read keeps its unread Sight
		return h.pipelined(ctx, len(devices), func(pipe redis.Pipeliner, i int) redis.Cmder {
			return pipe.HMGet(ctx, key(partOf(devices[i])), upto, devices[i])
		}, func(i int, done redis.Cmder) {
			if fields, is := done.(*redis.SliceCmd); is && len(fields.Val()) == 2 {
				sights[i] = sightOf(fields.Val())
			}
		})
	})
	return sights
}

func sightOf(fields []any) Sight {
	s := Sight{Upto: unknown}
	if text, is := fields[0].(string); is {
		s.Upto = number(text)
	}
	s.Version, _ = fields[1].(string)
	return s
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return unknown
	}
	return n
}

// Upto reads the position of each hash. It returns ErrUnavailable if Redis does not answer.
func (h *Hashes) Upto(ctx context.Context) (all [parts]int64, err error) {
	for i := range all {
		all[i] = unknown
	}
	err = h.pipelined(ctx, parts, func(pipe redis.Pipeliner, i int) redis.Cmder {
		return pipe.HGet(ctx, key(i), upto)
	}, func(i int, done redis.Cmder) {
		if text, is := done.(*redis.StringCmd); is {
			all[i] = number(text.Val())
		}
	})
	if err != nil {
		return all, fmt.Errorf("reading how far the marks have come: %w: %w", ErrUnavailable, err)
	}
	return all, nil
}

// pipelined sends n commands together and calls read for each reply, including the reply that a value does
// not exist. It returns the first error.
func (h *Hashes) pipelined(ctx context.Context, n int, send func(redis.Pipeliner, int) redis.Cmder, read func(int, redis.Cmder)) error {
	pipe := h.client.Pipeline()
	sent := make([]redis.Cmder, n)
	for i := range sent {
		sent[i] = send(pipe, i)
	}
	_, _ = pipe.Exec(ctx) // the error is read from each command
	var failed error
	for i, done := range sent {
		if err := done.Err(); err == nil || errors.Is(err, redis.Nil) {
			read(i, done)
		} else {
			failed = cmp.Or(failed, err)
		}
	}
	return failed
}

// Devices is a list of devices of one hash.
type Devices struct {
	Part  int
	Names []string
}

// markMost is the maximum number of devices that are marked in one round trip. Redis executes nothing else
// during a script.
const markMost = 10_000

// Mark marks devices. For each hash, one script marks its devices and advances the position of the hash to
// `to`. all must contain the devices of the news after position `from`, or, if `from` is -1, all devices with
// an open task. Mark does not change a hash that has not reached `from`. If it returns ErrUnavailable, some
// devices may be marked.
func (h *Hashes) Mark(ctx context.Context, from, to int64, all []Devices) error {
	for len(all) > 0 {
		calls, n := []*redisconn.Call(nil), 0
		for _, some := range all {
			if n += len(some.Names); n > markMost && len(calls) > 0 {
				break
			}
			calls = append(calls, h.marking(from, to, some))
		}
		if err := redisconn.Run(ctx, h.client, calls); err != nil {
			return fmt.Errorf("marking devices: %w: %w", ErrUnavailable, err)
		}
		all = all[len(calls):]
	}
	return nil
}

func (h *Hashes) marking(from, to int64, devices Devices) *redisconn.Call {
	args := make([]any, 0, 3+len(devices.Names))
	args = append(args, from, to, strconv.FormatUint(rand.Uint64(), 36))
	for _, name := range devices.Names {
		args = append(args, name)
	}
	return &redisconn.Call{Script: h.mark, Keys: []string{key(devices.Part)}, Args: args}
}

// Unmark deletes the mark of a device if it still has this version, and reports whether it deleted the mark.
// It returns ErrUnavailable if Redis does not answer.
func (h *Hashes) Unmark(ctx context.Context, device, version string) (bool, error) {
	done, err := h.unmark.Run(ctx, h.client, []string{key(partOf(device))}, device, version).Bool()
	if err != nil {
		return false, fmt.Errorf("taking a mark away: %w: %w", ErrUnavailable, err)
	}
	return done, nil
}
