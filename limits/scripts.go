package limits

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// sends is how often a script is sent at most, when the network loses it.
const sends = 3

var (
	//go:embed lua/keys.lua
	keysLua string
	//go:embed lua/trim.lua
	trimLua string
	//go:embed lua/times.lua
	timesLua string
	//go:embed lua/base.lua
	baseLua string
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/quick.lua
	quickLua string
	//go:embed lua/reserve.lua
	reserveLua string
	//go:embed lua/quick_settle.lua
	quickSettleLua string
	//go:embed lua/settle.lua
	settleLua string
	//go:embed lua/overdue.lua
	overdueLua string
	//go:embed lua/epoch.lua
	epochLua string
	//go:embed lua/fill.lua
	fillLua string
	//go:embed lua/takes.lua
	takesLua string
	//go:embed lua/quick_take.lua
	quickTakeLua string
	//go:embed lua/slide.lua
	slideLua string
	//go:embed lua/take.lua
	takeLua string
	//go:embed lua/note.lua
	noteLua string
	//go:embed lua/top.lua
	topLua string
)

type scripts struct {
	reserve                                 map[string]script // by the mode of reserve.lua
	take                                    map[string]script // by the mode of take.lua
	settle, overdue, fill, epoch, note, top script
}

// script is one, and the digest by which Redis knows it.
type script struct{ source, digest string }

func newScript(source string) script { return script{source, redis.NewScript(source).Hash()} }

// newScripts writes constants into scripts instead of sending them each time.
func newScripts(settleWithin time.Duration) scripts {
	head := fmt.Sprintf("local SETTLE = %d\n", settleWithin.Milliseconds()) + keysLua
	functions := timesLua + baseLua + commonLua
	modes := func(body string, modes ...string) map[string]script {
		all := make(map[string]script)
		for _, mode := range modes {
			all[mode] = newScript(fmt.Sprintf("local MODE = '%s'\n", mode) + body)
		}
		return all
	}
	takes := modes(takesLua+quickTakeLua+timesLua+commonLua+slideLua+takeLua, modeTake, modePeek)
	takes[modeReturn] = modes(takesLua+timesLua+commonLua+slideLua+takeLua, modeReturn)[modeReturn]
	return scripts{
		reserve: modes(head+quickLua+functions+reserveLua, "R", "P"),
		take:    takes,
		settle:  newScript(head + trimLua + quickSettleLua + functions + settleLua),
		fill:    newScript(head + functions + fillLua), overdue: newScript(head + timesLua + baseLua + overdueLua),
		epoch: newScript(epochLua), note: newScript(noteLua), top: newScript(topLua),
	}
}

// newToken names one undertaking over all its calls.
func newToken() string { return strconv.FormatUint(rand.Uint64(), 36) }

// run runs a script that may run twice, again when the network lost it.
func (l *Limiter) run(ctx context.Context, s script, scope string, keys, args []any) (*redis.Cmd, error) {
	return l.runAtMost(ctx, sends, s, scope, keys, args)
}

// runAtMost sends a script so often. Redis that did not answer a moment ago is not
// asked.
func (l *Limiter) runAtMost(ctx context.Context, sends int, s script, scope string, keys, args []any) (*redis.Cmd, error) {
	var cmd *redis.Cmd
	err := l.breakers.Do(ctx, prefix(scope), sends, func() error {
		cmd = l.send(ctx, s, keys, args, sends == 1)
		return cmd.Err()
	})
	if err != nil {
		return nil, unavailable(scope, err)
	}
	return cmd, nil
}

func unavailable(scope string, err error) error {
	return fmt.Errorf("limits of %s: %w: %w", scope, ErrUnavailable, err)
}

// send sends a script by its digest, or as a whole if Redis does not know it yet.
func (l *Limiter) send(ctx context.Context, s script, keys, args []any, once bool) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(append(append(all, "evalsha", s.digest, len(keys)), keys...), args...)
	cmd := l.do(ctx, all, once)
	if err := cmd.Err(); err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		all[0], all[1] = "eval", s.source
		cmd = l.do(ctx, all, once)
	}
	return cmd
}

func (l *Limiter) do(ctx context.Context, all []any, once bool) *redis.Cmd {
	cmd := redis.NewCmd(ctx, all...)
	if len(all) > 3 {
		cmd.SetFirstKeyPos(3) // so the node of a Cluster is known
	}
	if once {
		_ = l.client.Process(ctx, unrepeated{cmd})
	} else {
		_ = l.client.Process(ctx, cmd) // it is in cmd
	}
	return cmd
}

// unrepeated is a command that the client does not send again by itself.
type unrepeated struct{ redis.Cmder }

// NoRetry says so.
func (unrepeated) NoRetry() bool { return true }
