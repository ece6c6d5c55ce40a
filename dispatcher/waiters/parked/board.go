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

// ErrUnavailable means that Redis did not answer.
var ErrUnavailable = errors.New("redis is unavailable")

// WakeMessage wakes the parked report of a device that may now start a task in Pool. The reason is a slot that is offered to the device, or,
// for the holder of a caller, that callers may hold more slots. If Pool is empty, there is another reason.
type WakeMessage struct {
	Device string        `json:"device"`
	Pool   string        `json:"pool,omitempty"`
	Age    time.Duration `json:"age,omitempty"` // time from the release of the slot to the sending of the message; 0 if unknown
}

// Report is a parked report with the number that RegisterNewestReport returned for it.
type Report struct {
	Device string
	Number int64
}

// endRemembered is the time for which Redis remembers that a connection has ended, so that RegisterNewestReport returns previousJustEnded =
// true. All messages about the end of the connection are sent within this time.
const endRemembered = 10 * time.Second

func reportNumberKey(device string) string { return "parked:{" + device + "}" }

// Board exchanges messages about parked reports with the other replicas. It is safe for concurrent use.
type Board struct {
	client  redis.UniversalClient
	newest  *redis.Script
	gone    *redis.Script
	channel string
	replica string
	quiet   time.Duration // time without a message after which the connection is tested
}

// New returns the board of this replica in the Redis of client. database is the number of the database that client uses.
func New(client redis.UniversalClient, database int) *Board {
	return &Board{
		client: client, newest: redis.NewScript(newestLua), gone: redis.NewScript(goneLua), replica: rand.Text(),
		// The channel has the number of the database in its name, because channels belong to the whole server and keys to one database.
		channel: "parked:" + strconv.Itoa(database), quiet: 5 * time.Second,
	}
}

// RegisterNewestReport records that this replica parks a report of the device, and makes it the newest report of the device at all replicas.
// number is higher than the numbers of all earlier reports of the device. previousJustEnded is true if the connection of the previous report has
// just ended. Then messages about the end of that connection may still arrive. Redis keeps the number for numberTTL, at least 1 ms.
// RegisterNewestReport returns ErrUnavailable if Redis does not answer.
func (b *Board) RegisterNewestReport(ctx context.Context, device string, numberTTL time.Duration) (number int64, previousJustEnded bool, err error) {
	reply, err := b.newest.Run(ctx, b.client, []string{reportNumberKey(device)}, b.replica, numberTTL.Milliseconds(), b.channel, device).Slice()
	if err != nil {
		return 0, false, fmt.Errorf("parking a report: %w: %w", ErrUnavailable, err)
	}
	if len(reply) != 2 {
		return 0, false, fmt.Errorf("parking a report: unexpected reply %v", reply)
	}
	text, _ := reply[0].(string)
	if number, err = strconv.ParseInt(text, 10, 64); err != nil {
		return 0, false, fmt.Errorf("parking a report: %q is not a number: %w", text, err)
	}
	return number, reply[1] == int64(1), nil
}

// RecordClosedConnections records that the connections of parked reports have ended. withoutNewerReport has the elements of reports whose
// devices have parked no newer report. RecordClosedConnections returns ErrUnavailable if Redis does not answer.
func (b *Board) RecordClosedConnections(ctx context.Context, reports []Report) (withoutNewerReport []Report, err error) {
	replies := make([]*redis.Cmd, len(reports))
	_, err = b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, r := range reports { // the script is sent as text: a pipeline would report a missing script too late
			replies[i] = b.gone.Eval(ctx, p, []string{reportNumberKey(r.Device)}, r.Number, endRemembered.Milliseconds())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("recording ended connections: %w: %w", ErrUnavailable, err)
	}
	for i, r := range reports {
		if replies[i].Val() == int64(1) {
			withoutNewerReport = append(withoutNewerReport, r)
		}
	}
	return withoutNewerReport, nil
}

// Wake sends messages to all replicas. Each replica wakes its parked reports to which messages are addressed. Wake does not know whether a
// report was woken. It returns ErrUnavailable if Redis does not answer.
func (b *Board) Wake(ctx context.Context, messages []WakeMessage) error {
	if len(messages) == 0 {
		return nil
	}
	text, err := json.Marshal(messages)
	if err != nil {
		return fmt.Errorf("waking parked reports: %w", err)
	}
	if err := b.client.Publish(ctx, b.channel, append([]byte("wake "), text...)).Err(); err != nil {
		return fmt.Errorf("waking parked reports: %w: %w", ErrUnavailable, err)
	}
	return nil
}
