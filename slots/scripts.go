package slots

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// sends is how often a script is sent at most, when the network loses it.
const sends = 3

// chunk is how many requests go into one call: a script blocks Redis while it runs.
const chunk = 500

var (
	//go:embed lua/pool.lua
	poolLua string
	//go:embed lua/alone.lua
	aloneLua string
	//go:embed lua/line.lua
	lineLua string
	//go:embed lua/offer.lua
	offerLua string
	//go:embed lua/handon.lua
	handonLua string
	//go:embed lua/seat.lua
	seatLua string
	//go:embed lua/acquire.lua
	acquireLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/snapshot.lua
	snapshotLua string
	//go:embed lua/configure.lua
	configureLua string
	//go:embed lua/restore.lua
	restoreLua string
	//go:embed lua/adopt.lua
	adoptLua string
	//go:embed lua/standing.lua
	standingLua string
)

type scripts struct {
	acquire, release, snapshot, configure, restore, adopt, standing, handOn, seat *redis.Script
}

// knownLua comes before offer.lua where no script of its own says it.
const knownLua = "local capacity, held = known()\n"

func newScripts() scripts { return scriptsWith(lineLua) }

// scriptsWith builds the scripts around this line.lua.
func scriptsWith(lineLua string) scripts {
	script := func(src string) *redis.Script { return redis.NewScript(poolLua + src) }
	return scripts{
		acquire:  script(aloneLua + lineLua + offerLua + acquireLua),
		release:  script(releaseLua + lineLua + offerLua + "return hand_on(now, reply)"),
		handOn:   script(knownLua + lineLua + offerLua + handonLua),
		seat:     script(knownLua + lineLua + offerLua + seatLua),
		standing: script(lineLua + standingLua),
		snapshot: script(snapshotLua), configure: script(configureLua), restore: script(restoreLua), adopt: script(adoptLua),
	}
}

// key is one of the keys of a pool.
func key(pool, name string) string { return "slots:{" + pool + "}:" + name }

// Key is one that is on the same node of a Cluster as those of a pool.
func Key(pool string) string { return key(pool, "") }

// keys of a pool, in the order of pool.lua; one hash tag, so one node of a Cluster.
func keys(pool string) []string {
	prefix := key(pool, "")
	return []string{
		prefix + "free_at", prefix + "holder", prefix + "lease", prefix + "config", prefix + "released",
		prefix + "batch", prefix + "turn", prefix + "line", prefix + "due", prefix + "place",
		prefix + "offer", prefix + "offered", prefix + "unsent", prefix + "ready", prefix + "reach",
	}
}

// newCall names one call, over all its sendings.
func newCall() string { return strconv.FormatUint(rand.Uint64(), 36) }

// run runs a script, again when the network lost it.
func (s *Semaphore) run(ctx context.Context, script *redis.Script, pool string, args ...any) *redis.Cmd {
	var cmd *redis.Cmd
	err := s.guarded(ctx, pool, func() error {
		cmd = script.Run(ctx, s.client, keys(pool), args...)
		return cmd.Err()
	})
	if cmd == nil {
		cmd = redis.NewCmd(ctx)
		cmd.SetErr(err)
	}
	return cmd
}

// guarded sends unless Redis is known not to answer, and again what the network
// lost, as long as nobody else finds out that it does not.
func (s *Semaphore) guarded(ctx context.Context, pool string, send func() error) (err error) {
	b := s.breakers.Of(ctx, Key(pool))
	probe, ok := b.Enter()
	if !ok {
		return redisconn.ErrOpen
	}
	err = redisconn.ErrOpen // should send panic
	defer func() { b.Leave(ctx, probe, err) }()
	err = send()
	for n := 1; n < sends && !probe && ctx.Err() == nil && redisconn.Lost(err) && !b.IsOpen(); n++ {
		b.Suspect() // another one may answer now, which lacks the latest
		err = send()
	}
	return err
}

// unavailable wraps any failure to get an answer: whatever it is, nothing may
// be granted on it.
func unavailable(op, pool string, err error) error {
	return fmt.Errorf("%s pool %s: %w: %w", op, pool, ErrUnavailable, err)
}
