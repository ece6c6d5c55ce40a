package limits

import (
	_ "embed" // the scripts
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/keys.lua
	keysLua string
	//go:embed lua/times.lua
	timesLua string
	//go:embed lua/base.lua
	baseLua string
	//go:embed lua/common.lua
	commonLua string
	//go:embed lua/reserve.lua
	reserveLua string
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
	reserve                                 map[string]script // key: mode of lua/reserve.lua
	take                                    map[string]script // key: mode of lua/take.lua
	settle, overdue, fill, epoch, note, top script
}

// script is the source of a script and the digest by which Redis knows it.
type script struct{ source, digest string }

func newScript(source string) script { return script{source, redis.NewScript(source).Hash()} }

// newScripts returns the scripts. It writes settleWithin and the modes into their sources as constants, so that no call has to send them.
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
	return scripts{
		reserve: modes(head+functions+reserveLua, modeReserve, modePeekAtStarts),
		take:    modes(takesLua+timesLua+commonLua+slideLua+takeLua, modeTake, modePeek, modeReturn),
		settle:  newScript(head + functions + settleLua),
		fill:    newScript(head + functions + fillLua), overdue: newScript(head + timesLua + baseLua + overdueLua),
		epoch: newScript(epochLua), note: newScript(noteLua), top: newScript(topLua),
	}
}
