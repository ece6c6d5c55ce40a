package redisconn

import (
	"context"
	_ "embed" // the script
	"fmt"

	"github.com/redis/go-redis/v9"
)

// probeKey is not a key of any pool: in the keys of a pool, "}:" is followed by a name, and no such name is "probe".
const probeKey = "slots:{}:probe"

//go:embed lua/needed.lua
var commandCheckLua string

// findForbiddenCommands returns the needed commands that this user may not use or the server lacks. The key is an argument: as one of KEYS, all
// nodes of a Cluster but its owner would refuse the script.
func findForbiddenCommands(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	forbidden, err := redis.NewScript(commandCheckLua).Run(ctx, client, nil, probeKey).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("checking the permitted commands (EVALSHA, EVAL): %w", err)
	}
	return forbidden, nil
}
