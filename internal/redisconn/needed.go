package redisconn

import (
	"context"
	_ "embed" // the script
	"fmt"

	"github.com/redis/go-redis/v9"
)

// probeKey is no pool's: each of those has "}:" and a name that is none of its keys.
const probeKey = "slots:{}:probe"

//go:embed lua/needed.lua
var neededLua string

// forbiddenCommands are those that the program needs and that this user may not use
// here, or that do not exist. The key is an argument: as a key of the script it would
// have all nodes of a Cluster but one refuse to run it.
func forbiddenCommands(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	forbidden, err := redis.NewScript(neededLua).Run(ctx, client, nil, probeKey).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("EVALSHA, EVAL: %w", err)
	}
	return forbidden, nil
}
