package slots

import (
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// maxSends is the maximum number of times that a script is sent if Redis does not answer.
const maxSends = 3

// chunk is the maximum length of each list in one run of a script. Longer lists are sent in several runs, because a script blocks Redis
// while it runs.
const chunk = 500

var (
	//go:embed lua/core.lua
	coreLua string
	//go:embed lua/batch_order.lua
	batchOrderLua string
	//go:embed lua/turn.lua
	turnLua string
	//go:embed lua/queue.lua
	queueLua string
	//go:embed lua/serve.lua
	serveLua string
	//go:embed lua/refresh.lua
	refreshLua string
	//go:embed lua/snapshot.lua
	snapshotLua string
	//go:embed lua/configure.lua
	configureLua string
	//go:embed lua/restore.lua
	restoreLua string
	//go:embed lua/adopt.lua
	adoptLua string
	//go:embed lua/queue_places.lua
	queuePlacesLua string
)

type scripts struct {
	serve, refresh, snapshot, configure, restore, adopt, queuePlaces *redis.Script
}

func newScripts() scripts { return newScriptsWithCore(coreLua) }

// newScriptsWithCore returns the scripts. In front of each script it puts the libraries that the script needs. coreLua is the source of
// core.lua.
func newScriptsWithCore(coreLua string) scripts {
	core := "local core = (function()\n" + coreLua + "end)()\n"
	turn := core + "local turn = (function()\n" + turnLua + "end)()\n"
	order := turn + "local order = (function(core)\n" + batchOrderLua + "end)(core)\n"
	queue := order + "local queue = (function(core, turn, order)\n" + queueLua + "end)(core, turn, order)\n"
	return scripts{
		configure: redis.NewScript(core + configureLua), restore: redis.NewScript(core + restoreLua), adopt: redis.NewScript(core + adoptLua),
		serve: redis.NewScript(queue + serveLua), refresh: redis.NewScript(turn + refreshLua), queuePlaces: redis.NewScript(queue + queuePlacesLua), snapshot: redis.NewScript(queue + snapshotLua),
	}
}

func poolKey(pool, keyName string) string { return "slots:{" + pool + "}:" + keyName }

// NodeKey returns a key that is on the same node of a Cluster as the keys of the pool.
func NodeKey(pool string) string { return poolKey(pool, "") }

// poolKeys returns the Redis keys of a pool: four keys of core.lua, then six keys of the queue. All ten are on one node of a Cluster. They
// are substrings of one string, which saves eight allocations for each report that waits.
func poolKeys(pool string) []string {
	keys := []string{"config", "free", "holder", "lease", "queue", "waiter", "timer", "batch", "contest", "owed"}
	prefix, joined := NodeKey(pool), make([]byte, 0, 10*(len(pool)+16))
	for _, name := range keys {
		joined = append(append(joined, prefix...), name...)
	}
	for i, rest := 0, string(joined); i < len(keys); i++ {
		n := len(prefix) + len(keys[i])
		keys[i], rest = rest[:n], rest[n:]
	}
	return keys
}

// newCallID returns a random id for one call. If the call is sent again, it has the same id.
func newCallID() string { return strconv.FormatUint(rand.Uint64(), 36) }

func newScriptCall(script *redis.Script, pool string, args any) *redisconn.Call {
	text, _ := json.Marshal(args) // cannot fail
	return &redisconn.Call{Script: script, Keys: poolKeys(pool), Args: []any{text}}
}

// runScript runs a script for a pool. If Redis does not answer, runScript sends the script again.
func (s *Semaphore) runScript(ctx context.Context, script *redis.Script, pool string, args any) *redis.Cmd {
	one := newScriptCall(script, pool, args)
	s.breakers.Run(ctx, maxSends, []*redisconn.Call{one})
	return one.Cmd
}

// runAndDecode runs a script as runScript does, and decodes the reply into target as decodeReply does.
func (s *Semaphore) runAndDecode(ctx context.Context, script *redis.Script, pool string, args, target any) (poolKnown bool, err error) {
	return decodeReply(s.runScript(ctx, script, pool, args), target)
}

// decodeReply decodes the JSON reply of a script into target. An empty reply means that Redis does not know the pool. Then poolKnown is false.
func decodeReply(cmd *redis.Cmd, target any) (poolKnown bool, err error) {
	text, err := cmd.Text()
	if err != nil || text == "" {
		return false, err
	}
	if err := json.Unmarshal([]byte(text), target); err != nil {
		return false, fmt.Errorf("decoding a reply of %d bytes: %w", len(text), err)
	}
	return true, nil
}

// wrapUnavailable returns an error that wraps ErrUnavailable and cause. action names what failed, for example "serving".
func wrapUnavailable(action, pool string, cause error) error {
	return fmt.Errorf("%s pool %s: %w: %w", action, pool, ErrUnavailable, cause)
}
