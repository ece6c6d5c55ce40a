package slots

import "github.com/redis/go-redis/v9"

// RestoreScript lets tests interleave the chunks of several restores.
func RestoreScript() *redis.Script { return newScripts().restore }

// Keys of a pool.
func Keys(pool string) []string { return keys(pool) }
