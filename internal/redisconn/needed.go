package redisconn

import (
	"context"
	_ "embed" // the script
	"fmt"

	"github.com/redis/go-redis/v9"
)

// probeKey is the key on which the commands are tried. It is no key of a pool, because no key of a pool ends in "probe".
const probeKey = "slots:{}:probe"

//go:embed lua/needed.lua
var commandCheckLua string

// findForbiddenCommands returns the needed commands that the Redis user of client may not use, or that the server lacks. It tries them in a
// script. The script gets probeKey in ARGV. With probeKey in KEYS, only one node of a Cluster, the owner of the key, would run the script.
func findForbiddenCommands(ctx context.Context, client redis.UniversalClient) (commands []string, err error) {
	forbidden, err := redis.NewScript(commandCheckLua).Run(ctx, client, nil, probeKey).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("checking the permitted commands (EVALSHA, EVAL): %w", err)
	}
	return forbidden, nil
}
