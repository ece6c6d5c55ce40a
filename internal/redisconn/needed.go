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
// here, or that do not exist.
func forbiddenCommands(ctx context.Context, client redis.UniversalClient) ([]string, error) {
	forbidden, err := redis.NewScript(neededLua).Run(ctx, client, []string{probeKey}).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("EVALSHA, EVAL: %w", err)
	}
	return forbidden, nil
}
