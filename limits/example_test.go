package limits_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// The example sends at most three messages per minute to one phone.
func Example() {
	server := miniredis.NewMiniRedis() // or any Redis from 6.2
	_ = server.Start()
	defer server.Close()

	ctx, limiter := context.Background(), limits.New(redis.NewClient(&redis.Options{Addr: server.Addr()}))
	rules, err := limits.CompileSet("sms", []policy.Policy{{
		Name: "per-phone", Per: "facts.phone", Algorithm: policy.Sliding, Windows: []policy.Window{{Max: 3, PerMS: 60_000}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"message-1", "message-2", "message-2"} {
		facts := limits.Facts{Facts: map[string]string{"phone": "+491700000"}}
		taken, _ := limiter.Takes.Take(ctx, "sms", []limits.Taking{limits.NewTaking(id, 2, rules, facts)})
		fmt.Println(id, taken[0].Allowed, taken[0].Items[0].Remaining, taken[0].Wait > 0)
	}
	facts := limits.Facts{Facts: map[string]string{"phone": "+491700000"}}
	again, _ := limiter.Takes.Take(ctx, "sms", []limits.Taking{limits.NewTaking("message-1", 2, rules, facts)})
	fmt.Println("message-1", again[0].Allowed, again[0].Repeated)
	// Output:
	// message-1 true 1 false
	// message-2 false 1 true
	// message-2 false 1 true
	// message-1 true true
}
