package testservers_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/internal/testservers"
)

func TestSharedRedisOutlivesTheTestThatStartedIt(t *testing.T) { //nolint:tparallel // one after the other
	t.Parallel()
	var shared testservers.SharedRedis
	t.Cleanup(shared.Close)
	for _, name := range []string{"first", "second"} { // each has an empty database
		t.Run(name, func(t *testing.T) {
			shared.Each(t, func(t *testing.T, at testservers.RedisAt) {
				t.Helper()
				key := "{of} " + name
				client := at.Client(t)
				if had, err := client.Exists(t.Context(), "{of} first", key).Result(); err != nil || had > 0 && !at.Cluster {
					t.Fatalf("%d keys at first, %v", had, err)
				}
				if err := client.Set(t.Context(), key, 1, 0).Err(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
