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
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// hashCount is the number of Redis hashes that store the marks. They are spread over the nodes of a Cluster. A change of hashCount or
// marksHashIndex moves devices to other hashes. It must also change marksHashKey, because an existing hash would lack the marks of these
// devices, but keep its position.
const hashCount = 256

// positionField is the field of a hash that stores its position in the news. No device has this name.
const positionField = ""

const (
	missingHash = -1 // position of a hash that does not exist
	unreadHash  = -2 // position of a hash that could not be read
)

var (
	//go:embed mark.lua
	markLua string
	//go:embed unmark.lua
	unmarkLua string
	//go:embed record_wait.lua
	recordWaitLua string
	//go:embed end_wait.lua
	endWaitLua string
)

// ErrUnavailable is returned if Redis does not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// Hashes stores the marks in Redis. Several replicas may use it concurrently.
type Hashes struct {
	client                            redis.UniversalClient
	mark, unmark, recordWait, endWait *redis.Script
	breakers                          *redisconn.Breakers
}

// NewHashes returns Hashes in the Redis of client.
func NewHashes(client redis.UniversalClient) *Hashes {
	now := time.Now //nolint:forbidigo // elapsed time, which no server can tell
	return &Hashes{
		client: client, mark: redis.NewScript(markLua), unmark: redis.NewScript(unmarkLua), recordWait: redis.NewScript(recordWaitLua),
		endWait: redis.NewScript(endWaitLua), breakers: redisconn.NewBreakers(client, now),
	}
}

// MarkReading is the result of reading the mark of one device.
type MarkReading struct {
	Version  string // version of the mark; empty if the device has no mark
	Wait     Wait   // the wait in the mark; zero if the mark has none
	Position int64  // position in the news (the change log) up to which the marks of the device's hash are updated; negative if unknown
}

func marksHashIndex(device string) (index int) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(device)) // never fails
	return int(h.Sum32() % hashCount)
}

func marksHashKey(index int) string { return "marks:" + strconv.Itoa(index) }

// ReadMarks reads the marks of devices in one round trip. If Redis does not answer for a device, its MarkReading has no Version and the
// Position unreadHash.
func (h *Hashes) ReadMarks(ctx context.Context, devices []string) []MarkReading {
	readings := make([]MarkReading, len(devices))
	for i := range readings {
		readings[i].Position = unreadHash
	}
	_ = h.breakers.Do(ctx, marksHashKey(0), 1, func() error { // a mark that cannot be read keeps its unread MarkReading
		return h.runPipeline(ctx, len(devices), func(pipe redis.Pipeliner, i int) redis.Cmder {
			return pipe.HMGet(ctx, marksHashKey(marksHashIndex(devices[i])), positionField, devices[i])
		}, func(i int, done redis.Cmder) {
			if fields, is := done.(*redis.SliceCmd); is && len(fields.Val()) == 2 {
				readings[i] = parseMarkReading(fields.Val())
			}
		})
	})
	return readings
}

// parseMarkReading returns the MarkReading in reply, which has two elements: the position of a hash, and the mark of a device in this hash.
func parseMarkReading(reply []any) MarkReading {
	s := MarkReading{Position: missingHash}
	if text, is := reply[0].(string); is {
		s.Position = parsePosition(text)
	}
	text, _ := reply[1].(string)
	var wait string
	s.Version, wait, _ = strings.Cut(text, "|")
	s.Wait = parseWait(wait)
	return s
}

// Wait records that a device waits for a slot of one pool.
type Wait struct {
	Pool     string    // empty means that the device is not known to wait
	Position int64     // position in the news that was read before the device was read from the ledger
	Until    time.Time // the ledger's time at which the wait ends and the ledger must be read again; zero means never
}

// String returns the text of the wait in a mark (record_wait.lua).
func (w Wait) String() string {
	until := int64(0)
	if !w.Until.IsZero() {
		until = w.Until.UnixMilli()
	}
	return fmt.Sprintf("%d|%d|%s", w.Position, until, w.Pool)
}

// parseWait returns the wait in text, which Wait.String made. If text has another form, it returns a Wait without a pool.
func parseWait(text string) Wait {
	position, rest, _ := strings.Cut(text, "|")
	until, pool, _ := strings.Cut(rest, "|")
	w := Wait{Pool: pool, Position: parsePosition(position)}
	switch ms := parsePosition(until); {
	case w.Position == missingHash || ms == missingHash:
		return Wait{}
	case ms > 0:
		w.Until = time.UnixMilli(ms)
	}
	return w
}

// parsePosition returns the number in text, or missingHash if there is none.
func parsePosition(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return missingHash
	}
	return n
}

// ReadPositions returns, for each hash, the position in the news (the change log) that its marks include. It returns ErrUnavailable if
// Redis does not answer.
func (h *Hashes) ReadPositions(ctx context.Context) (positionByHash [hashCount]int64, err error) {
	for i := range positionByHash {
		positionByHash[i] = missingHash
	}
	err = h.runPipeline(ctx, hashCount, func(pipe redis.Pipeliner, i int) redis.Cmder {
		return pipe.HGet(ctx, marksHashKey(i), positionField)
	}, func(i int, done redis.Cmder) {
		if text, is := done.(*redis.StringCmd); is {
			positionByHash[i] = parsePosition(text.Val())
		}
	})
	if err != nil {
		return positionByHash, fmt.Errorf("reading from Redis up to which news the marks are complete: %w: %w", ErrUnavailable, err)
	}
	return positionByHash, nil
}

// runPipeline sends commandCount commands to Redis in one round trip. sendCommand adds the command with the index (from 0) to pipe. handleReply
// is called with each reply, even if the value that the command asked for does not exist. runPipeline returns the first error.
func (h *Hashes) runPipeline(ctx context.Context, commandCount int, sendCommand func(pipe redis.Pipeliner, index int) redis.Cmder, handleReply func(index int, reply redis.Cmder)) error {
	pipe := h.client.Pipeline()
	sent := make([]redis.Cmder, commandCount)
	for i := range sent {
		sent[i] = sendCommand(pipe, i)
	}
	_, _ = pipe.Exec(ctx) // the error is read from each command
	var failed error
	for i, done := range sent {
		if err := done.Err(); err == nil || errors.Is(err, redis.Nil) {
			handleReply(i, done)
		} else {
			failed = cmp.Or(failed, err)
		}
	}
	return failed
}

// HashDevices lists the devices whose marks are in one of the hashes.
type HashDevices struct {
	HashIndex int // index of the hash, as marksHashIndex returns it
	Names     []string
}

// maxMarkedDevices is the maximum number of devices that are marked in one round trip, because a script blocks Redis while it runs.
const maxMarkedDevices = 10_000

// MarkDevices marks the devices in devicesByHash, and moves the position of each hash in the news to toPosition. devicesByHash must contain the
// devices of the news after fromPosition. If fromPosition is -1, it must contain all devices with an open task. MarkDevices does not change a hash
// that has not reached fromPosition. After ErrUnavailable, some devices may be marked.
func (h *Hashes) MarkDevices(ctx context.Context, fromPosition, toPosition int64, devicesByHash []HashDevices) error {
	for len(devicesByHash) > 0 {
		calls, n := []*redisconn.Call(nil), 0
		for _, some := range devicesByHash {
			if n += len(some.Names); n > maxMarkedDevices && len(calls) > 0 {
				break
			}
			calls = append(calls, h.newMarkCall(fromPosition, toPosition, some))
		}
		if err := redisconn.Run(ctx, h.client, calls); err != nil {
			return fmt.Errorf("marking devices: %w: %w", ErrUnavailable, err)
		}
		devicesByHash = devicesByHash[len(calls):]
	}
	return nil
}

func (h *Hashes) newMarkCall(fromPosition, toPosition int64, devices HashDevices) *redisconn.Call {
	args := make([]any, 0, 3+len(devices.Names))
	args = append(args, fromPosition, toPosition, newMarkVersion())
	for _, name := range devices.Names {
		args = append(args, name)
	}
	return &redisconn.Call{Script: h.mark, Keys: []string{marksHashKey(devices.HashIndex)}, Args: args}
}

func newMarkVersion() string { return strconv.FormatUint(rand.Uint64(), 36) }

// DeviceWait is the wait of a device whose mark has this version.
type DeviceWait struct {
	Device, Version string
	Wait            Wait
}

// RecordWaits adds each wait to the mark of its device, if the mark still has the version of the wait. After ErrUnavailable, some waits may be
// recorded.
func (h *Hashes) RecordWaits(ctx context.Context, waits []DeviceWait) error {
	calls := make([]*redisconn.Call, len(waits))
	for i, w := range waits {
		calls[i] = &redisconn.Call{Script: h.recordWait, Keys: []string{marksHashKey(marksHashIndex(w.Device))}, Args: []any{w.Device, w.Version, w.Wait.String()}}
	}
	return h.sendWaitChanges(ctx, "recording", calls)
}

// EndWaits removes the waits from the marks of devices, and gives the marks new versions. After ErrUnavailable, some waits may have ended.
func (h *Hashes) EndWaits(ctx context.Context, devices []string) error {
	calls := make([]*redisconn.Call, len(devices))
	for i, device := range devices {
		calls[i] = &redisconn.Call{Script: h.endWait, Keys: []string{marksHashKey(marksHashIndex(device))}, Args: []any{device, newMarkVersion()}}
	}
	return h.sendWaitChanges(ctx, "ending", calls)
}

func (h *Hashes) sendWaitChanges(ctx context.Context, action string, calls []*redisconn.Call) error {
	err := h.breakers.Do(ctx, marksHashKey(0), 1, func() error { return redisconn.Run(ctx, h.client, calls) })
	if err != nil {
		return fmt.Errorf("%s waits: %w: %w", action, ErrUnavailable, err)
	}
	return nil
}

// DeleteMark deletes the mark of a device if the mark still has this version. It returns ErrUnavailable if Redis does not answer.
func (h *Hashes) DeleteMark(ctx context.Context, device, markVersion string) (deleted bool, err error) {
	done, err := h.unmark.Run(ctx, h.client, []string{marksHashKey(marksHashIndex(device))}, device, markVersion).Bool()
	if err != nil {
		return false, fmt.Errorf("deleting a mark: %w: %w", ErrUnavailable, err)
	}
	return done, nil
}
