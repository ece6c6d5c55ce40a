package slots_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/slots"
)

// Three jobs ask for a slot of a pool with two slots. Two of them get a slot. The third job gets the slot of the
// first job after the first job has freed it.
func Example() {
	server := miniredis.NewMiniRedis() // or any Redis from 6.2
	_ = server.Start()
	defer server.Close()

	ctx := context.Background()
	pool, err := slots.Open(ctx, redis.NewClient(&redis.Options{Addr: server.Addr()}), "printers", 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, job := range []string{"job-1", "job-2", "job-3"} {
		slot, acquired, _ := pool.Acquire(ctx, job, time.Minute)
		fmt.Println(job, acquired, slot)
	}
	freed, _ := pool.Release(ctx, "job-1")
	slot, acquired, _ := pool.Acquire(ctx, "job-3", time.Minute)
	fmt.Println(freed, acquired, slot)
	// Output:
	// job-1 true 0
	// job-2 true 1
	// job-3 false 0
	// true true 0
}
