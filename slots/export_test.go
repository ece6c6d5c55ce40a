package slots

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// RestoreScript lets tests interleave the chunks of several restores.
func RestoreScript() *redis.Script { return newScripts().restore }

// Keys of a pool.
func Keys(pool string) []string { return keys(pool) }

// NewPatient returns a semaphore that keeps a place up to a minute and counts
// only what was never counted, so that no busy machine makes a test late.
func NewPatient(client redis.UniversalClient) *Semaphore {
	s := New(client)
	patient := strings.NewReplacer("LONGEST = 2000", "LONGEST = 60000", "COUNT_MS = 10000", "COUNT_MS = 100000000")
	s.scripts = scriptsWith(patient.Replace(lineLua))
	return s
}
