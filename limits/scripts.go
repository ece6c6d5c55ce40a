package limits

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// sends is how often a script is sent at most, when the network loses it.
const sends = 3

var (
	//go:embed lua/keys.lua
	keysLua string
	//go:embed lua/base.lua
	baseLua string
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/single.lua
	singleLua string
	//go:embed lua/reserve.lua
	reserveLua string
	//go:embed lua/settle.lua
	settleLua string
	//go:embed lua/overdue.lua
	overdueLua string
	//go:embed lua/believe.lua
	believeLua string
	//go:embed lua/fill.lua
	fillLua string
	//go:embed lua/note.lua
	noteLua string
	//go:embed lua/top.lua
	topLua string
)

type scripts struct{ single, reserve, settle, overdue, believe, fill, note, top *redis.Script }

func newScripts() scripts {
	// Making the functions takes longer than a check of one window: it makes them when
	// it needs one.
	seldom := "local function base()\n" + baseLua + "\nreturn others, slide_count, set_known\nend\n"
	short := func(src string) *redis.Script { return redis.NewScript(keysLua + baseLua + src) }
	script := func(src string) *redis.Script { return short(commonLua + src) }
	return scripts{
		single: redis.NewScript(keysLua + seldom + singleLua), overdue: short(overdueLua),
		reserve: script(reserveLua), settle: script(settleLua), fill: script(fillLua),
		believe: redis.NewScript(believeLua), note: redis.NewScript(noteLua), top: redis.NewScript(topLua),
	}
}

// prefix of the keys of a scope: one hash tag, so one node of a Cluster.
func prefix(scope string) string { return "limits:{" + scope + "}:" }

// keysOf are those of a scope, in the order of keys.lua.
func keysOf(scope string, more int) []string {
	p := prefix(scope)
	keys := make([]string, 0, 3+more)
	return append(keys, p+"open", p+"pending", p+"done")
}

// keysOfTop are those of note.lua.
func keysOfTop(scope string) []string {
	p := prefix(scope)
	return []string{p + "top0", p + "top1", p + "hour"}
}

func ruleKey(scope string, r *Rule) string { return prefix(scope) + "r:" + r.id }

func subjectKey(scope string, r *Rule, digest string) string {
	return prefix(scope) + "s:" + r.id + ":" + digest
}

// newToken names one undertaking over all its calls.
func newToken() string { return strconv.FormatUint(rand.Uint64(), 36) }

// run runs a script that may run twice, again when the network lost it.
func (l *Limiter) run(ctx context.Context, script *redis.Script, scope string, keys []string, args []any) (*redis.Cmd, error) {
	return l.runAtMost(ctx, sends, script, scope, keys, args)
}

// runAtMost sends a script so often. Redis that did not answer a moment ago is not
// asked.
func (l *Limiter) runAtMost(ctx context.Context, sends int, script *redis.Script, scope string, keys []string, args []any) (*redis.Cmd, error) {
	g := l.guards.of(scope)
	probe, ok := g.enter()
	if !ok {
		return nil, silent(scope)
	}
	err := ErrUnavailable // should sending panic
	defer func() { g.leave(ctx, probe, err) }()
	var cmd *redis.Cmd
	for range sends {
		cmd = script.Run(ctx, l.client, keys, args...)
		if err = cmd.Err(); !lost(err) || probe || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("limits of %s: %w: %w", scope, ErrUnavailable, err)
	}
	return cmd, nil
}

// silent: Redis is left alone for a moment.
func silent(scope string) error {
	return fmt.Errorf("limits of %s: %w: it did not answer a moment ago", scope, ErrUnavailable)
}

// lost is whether no answer came, so that sending again can help.
func lost(err error) bool {
	var answer redis.Error
	return err != nil && !errors.As(err, &answer) && !errors.Is(err, redis.ErrPoolTimeout)
}

// checkScope keeps a name from breaking out of the hash tag.
func checkScope(scope string) error {
	if scope == "" || strings.ContainsAny(scope, "{}") {
		return fmt.Errorf("%w: scope %q", ErrInvalid, scope)
	}
	return nil
}
