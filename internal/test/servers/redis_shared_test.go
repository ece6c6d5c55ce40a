package servers_test

import (
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func TestSharedRedisOutlivesTheTestThatStartedIt(t *testing.T) { //nolint:tparallel // one after the other
	t.Parallel()
	var shared servers.SharedRedis
	t.Cleanup(shared.Close)
	for _, name := range []string{"first", "second"} { // each has an empty database
		t.Run(name, func(t *testing.T) {
			shared.RunOnEach(t, func(t *testing.T, at servers.RedisAt) {
				t.Helper()
				key := "k"
				if at.Cluster {
					key = "k{" + t.Name() + "}"
				}
				if fresh, err := at.Client(t).SetNX(t.Context(), key, 1, 0).Result(); err != nil || !fresh {
					t.Fatalf("it is not empty at first: %v", err)
				}
			})
		})
		if left := shared.Cluster(t).Client(t).Keys(t.Context(), "*").Val(); len(left) > 0 {
			t.Errorf("left on the node: %q", left)
		}
	}
}
