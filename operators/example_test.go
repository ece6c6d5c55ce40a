package operators_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/fleetslots/dispatcher/operators"
)

// connect returns a client for the dispatcher whose address is in the environment variables that the commands use.
func connect() *operators.Client {
	c, err := operators.New(operators.Config{URL: os.Getenv("DISPATCHER_URL"), Token: os.Getenv("DISPATCHER_TOKEN"), Agent: "example/1"})
	if err != nil {
		panic(err)
	}
	return c
}

// The example creates a pool with two slots, and one task for each of three devices.
func Example() {
	ctx := context.Background()
	c, err := operators.New(operators.Config{URL: os.Getenv("DISPATCHER_URL"), Token: os.Getenv("DISPATCHER_TOKEN")})
	if err != nil {
		panic(err)
	}
	if _, err := c.Pools.Put(ctx, "example", operators.PoolSettings{Capacity: 2}); err != nil {
		panic(err)
	}
	made, err := c.Batches.Create(ctx, operators.NewBatch{
		Pool: "example", Kind: "speedtest", Payload: json.RawMessage(`{"streams":4}`), Devices: []string{"a-1", "a-2", "a-3"},
	}, operators.QueueMode{})
	if err != nil {
		panic(err)
	}
	for task, err := range c.Tasks.List(ctx, operators.TaskFilter{Batch: made.ID}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(task.Device, task.State, string(task.Payload))
	}
	// Output:
	// a-1 pending {"streams":4}
	// a-2 pending {"streams":4}
	// a-3 pending {"streams":4}
}

// A refusal has a code for programs and a detail for people.
func ExampleProblem() {
	_, err := connect().Pools.Get(context.Background(), "nowhere")
	if p, ok := errors.AsType[*operators.Problem](err); ok {
		fmt.Println(p.Status, p.Code)
	}
	// Output: 404 not_found
}

// A patch leaves fields that are not set unchanged.
func ExamplePools_Change() {
	ctx, c := context.Background(), connect()
	lease := int64(60_000)
	if _, err := c.Pools.Put(ctx, "changing", operators.PoolSettings{Capacity: 2, LeaseMS: &lease}); err != nil {
		panic(err)
	}
	p, err := c.Pools.Change(ctx, "changing", operators.PoolPatch{Capacity: operators.Set(5)})
	if err != nil {
		panic(err)
	}
	fmt.Println(p.Capacity, p.LeaseMS)
	p, err = c.Pools.Change(ctx, "changing", operators.PoolPatch{LeaseMS: operators.Default[int64]()})
	if err != nil {
		panic(err)
	}
	fmt.Println(p.Capacity, p.LeaseMS)
	// Output:
	// 5 60000
	// 5 300000
}

// A program that stores its key creates one batch, even if it runs several times.
func ExampleWithKey() {
	c := connect()
	if _, err := c.Pools.Put(context.Background(), "keyed", operators.PoolSettings{Capacity: 1}); err != nil {
		panic(err)
	}
	ctx := operators.WithKey(context.Background(), "nightly-2027-01-31")
	nightly := operators.NewBatch{Pool: "keyed", Devices: []string{"k-1"}}
	first, err := c.Batches.Create(ctx, nightly, operators.QueueMode{})
	if err != nil {
		panic(err)
	}
	again, err := c.Batches.Create(ctx, nightly, operators.QueueMode{})
	if err != nil {
		panic(err)
	}
	fmt.Println(first.ID == again.ID)
	// Output: true
}

// Why returns the reason why a task waits.
func ExampleTasks_Why() {
	ctx, c, paused := context.Background(), connect(), true
	if _, err := c.Pools.Put(ctx, "stopped", operators.PoolSettings{Capacity: 1, Paused: &paused}); err != nil {
		panic(err)
	}
	made, err := c.Batches.Create(ctx, operators.NewBatch{Pool: "stopped", Devices: []string{"w-1"}}, operators.QueueMode{})
	if err != nil {
		panic(err)
	}
	for task, err := range c.Tasks.List(ctx, operators.TaskFilter{Batch: made.ID}) {
		if err != nil {
			panic(err)
		}
		why, err := c.Tasks.Why(ctx, task.ID)
		if err != nil {
			panic(err)
		}
		fmt.Println(why.State, why.Reasons[0].Code)
	}
	// Output: pending pool_paused
}

// Follow calls a function with each event, beginning with the first event of a pool, until the function returns an
// error.
func ExampleEvents_Follow() {
	ctx, c := context.Background(), connect()
	if _, err := c.Pools.Put(ctx, "told", operators.PoolSettings{Capacity: 1}); err != nil {
		panic(err)
	}
	enough := errors.New("enough")
	err := c.Events.Follow(ctx, operators.EventFilter{Pool: "told"}, operators.LivePosition{LastID: "0"}, func(e operators.Event) error {
		fmt.Println(e.Kind, e.Actor)
		return enough
	})
	fmt.Println(err)
	// Output:
	// pool.created bootstrap
	// enough
}
