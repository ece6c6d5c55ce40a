package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	claimGranted  = store.ClaimGranted
	claimLost     = store.ClaimLost
	claimConflict = store.ClaimConflict
)

func TestBadClaimsSpoilNoGoodOnes(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 10)
		l.putPool("closed", 10)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c", "d", "e", "f")
		_, stopped := l.queueBatch(store.Batch{Pool: "p", Paused: true}, "g")
		_, paused := l.queueBatch(store.Batch{Pool: "closed"}, "h")
		_, second := l.queueBatch(store.Batch{Pool: "p"}, "a")
		soon := time.Now().Add(time.Hour)
		_, early := l.queueBatch(store.Batch{Pool: "p", NotBefore: &soon}, "i")
		past := time.Now().Add(-time.Hour)
		_, over := l.queueBatch(store.Batch{Pool: "p", NotAfter: &past}, "j")
		_, _, err := l.PutPool(l.Context(), "op", "closed", store.PoolSpec{Capacity: 10, Lease: time.Hour, Paused: true})
		l.must(err)
		_, err = l.EnsureDevices(l.Context(), "f")
		l.must(err)
		l.must(l.SetBlocked(l.Context(), "op", "f", true, ""))
		l.mustGrant(ids[0], "a", "p", 0)

		l.wantStatuses(l.claimAll(
			l.newClaim(ids[1], "b", "p", 1),
			l.newClaim(ids[2], "c", "p", 0),         // the slot is taken
			l.newClaim(999999, "c", "p", 2),         // no such task
			l.newClaim(ids[2], "d", "p", 2),         // the task belongs to another device
			l.newClaim(stopped[0], "g", "p", 2),     // the batch is paused
			l.newClaim(paused[0], "h", "closed", 2), // the pool is paused
			l.newClaim(early[0], "i", "p", 2),       // the batch has not begun
			l.newClaim(over[0], "j", "p", 2),        // the batch has ended
			l.newClaim(ids[5], "f", "p", 2),         // the device is blocked
			l.newClaim(second[0], "a", "p", 2),      // the device holds another grant
			l.newClaim(ids[0], "a", "p", 2),         // the task is granted already
			l.newClaim(ids[4], "e", "nowhere", 2),   // no such pool
			l.newClaim(ids[4], "e", "closed", 2),    // the task belongs to another pool
			l.newClaim(ids[4], "e", "p", 10),        // the slot is beyond the capacity
			l.newClaim(ids[4], "e", "p", -1),        // the slot number is negative
			l.newClaim(ids[3], "d", "p", 3),
		), claimGranted, claimConflict, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimLost, claimConflict, claimConflict, claimGranted)
		grants, err := l.Grants(l.Context(), "p")
		l.must(err)
		var got []string
		for _, g := range grants {
			got = append(got, fmt.Sprint(g.Slot, " ", g.Device))
		}
		if want := []string{"0 a", "1 b", "3 d"}; !slices.Equal(got, want) {
			l.Fatalf("grants %v, want %v", got, want)
		}
	})
}

func TestClaimsOfOneCallContend(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 10)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "b")
	twice := l.newClaim(ids[0], "a", "p", 0)
	l.wantStatuses(l.claimAll(twice, twice, l.newClaim(ids[0], "a", "p", 1)), claimGranted, claimLost, claimLost)
	l.wantStatuses(l.claimAll(l.newClaim(ids[1], "b", "p", 2), l.newClaim(ids[2], "b", "p", 3)), claimGranted, claimLost)
	if outcomes, err := l.Claim(l.Context(), nil, true); err != nil || len(outcomes) != 0 {
		l.Fatalf("no claims: %v, %v", outcomes, err)
	}
}

// TestLoweredCapacityAdmitsNobodyBeforeThereIsRoom lowers the capacity of a pool while the slots 20 to 59 are held. The semaphore has lost
// its state, so it may propose any slot. The ledger must grant nothing until the number of held slots is below the new capacity.
func TestLoweredCapacityAdmitsNobodyBeforeThereIsRoom(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 60)
	devices := deviceNames(200)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
	var first []store.Claim
	for slot := 20; slot < 60; slot++ {
		first = append(first, l.newClaim(ids[slot], devices[slot], "p", slot))
	}
	if got := l.claimAll(first...); slices.Contains(got, claimLost) || slices.Contains(got, claimConflict) {
		l.Fatalf("the first 40: %v", got)
	}
	l.putPool("p", 40)
	held := func() int {
		grants, err := l.Grants(l.Context(), "p")
		l.must(err)
		return len(grants)
	}
	wipe := func() { // Claim every slot, in random order and in two calls.
		var claims []store.Claim
		for i, slot := range rand.Perm(60) {
			claims = append(claims, l.newClaim(ids[100+i], devices[100+i], "p", slot))
		}
		l.claimAll(claims[:30]...)
		l.claimAll(claims[30:]...)
	}
	wipe()
	if got := held(); got != 40 {
		l.Fatalf("%d held after a wipe at capacity 40, want the 40 old ones", got)
	}
	for ended := 20; ended < 60; ended++ {
		task, grant, _, err := l.Task(l.Context(), ids[ended])
		l.must(err)
		if task.State != store.Dispatched {
			l.Fatalf("task %d: %+v", ended, task)
		}
		l.recordResult(*grant, store.BySuccess, "")
		if ended%8 == 0 {
			wipe()
		}
		if got := held(); got > 40 {
			l.Fatalf("%d held at capacity 40", got)
		}
	}
	for slot := range 60 {
		l.claimAll(l.newClaim(ids[slot%20], devices[slot%20], "p", slot))
		l.claimAll(l.newClaim(ids[160+slot%40], devices[160+slot%40], "p", slot))
	}
	if got := held(); got != 40 {
		l.Fatalf("%d held in the end, want all 40 slots in use", got)
	}
}

func TestTokensIncreasePerSlotAndTask(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		devices := deviceNames(12)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 100}, devices...)
		bySlot, byTask := map[int]int64{}, map[int64]int64{}
		var wait sync.WaitGroup
		var mu sync.Mutex
		for range 3 {
			wait.Go(func() {
				for range 20 {
					i, slot := rand.IntN(len(ids)), rand.IntN(4)
					outcomes, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[i], devices[i], "p", slot)}, true)
					if err != nil {
						l.Error(err)
						return
					}
					if outcomes[0].Status != claimGranted {
						continue
					}
					g := outcomes[0].Grant
					mu.Lock() // The slot is held until the report below.
					if g.Token <= bySlot[g.Slot] || g.Token <= byTask[g.Task] {
						l.Errorf("token %d after %d on its slot and %d on its task", g.Token, bySlot[g.Slot], byTask[g.Task])
					}
					bySlot[g.Slot], byTask[g.Task] = g.Token, g.Token
					mu.Unlock()
					r := store.Result{Device: g.Device, Task: g.Task, Token: g.Token, Cause: store.ByFailure}
					if o := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]; o.Kind != store.ResultRecorded {
						l.Errorf("result: %+v", o)
					}
				}
			})
		}
		wait.Wait()
		if len(byTask) == 0 {
			l.Fatal("nothing was granted")
		}
	})
}

// TestContendingClaimsNeverShareASlot lets many replicas claim the same slots of several pools, in opposite orders. Each device has several
// tasks. No call may fail with a deadlock. No slot and no device may have two grants.
func TestContendingClaimsNeverShareASlot(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		pools := []string{"pa", "pb", "pc"}
		devices := deviceNames(40)
		tasks := map[string][]int64{}
		for _, pool := range pools {
			l.putPool(pool, 10)
			_, tasks[pool] = l.queueBatch(store.Batch{Pool: pool}, devices...)
		}
		ctx, cancel := context.WithCancel(l.Context())
		defer cancel()
		var wait sync.WaitGroup
		for n := range 50 {
			order := slices.Clone(pools)
			if n%2 == 1 {
				slices.Reverse(order)
			}
			wait.Go(func() {
				var claims []store.Claim
				for _, pool := range order {
					for slot := range 10 {
						d := rand.IntN(len(devices))
						claims = append(claims, l.newClaim(tasks[pool][d], devices[d], pool, slot))
					}
				}
				rand.Shuffle(len(claims), func(i, j int) { claims[i], claims[j] = claims[j], claims[i] })
				if _, err := l.Claim(ctx, claims, true); err != nil {
					l.Error(err)
					cancel() // without a unique key, the other claims would meet deadlocks for minutes
				}
			})
		}
		wait.Wait()
		slotsOf, devicesOf := map[string]bool{}, map[string]bool{}
		for _, pool := range pools {
			grants, err := l.Grants(l.Context(), pool)
			l.must(err)
			for _, g := range grants {
				slot := fmt.Sprint(pool, g.Slot)
				if slotsOf[slot] || devicesOf[g.Device] || g.Slot > 9 {
					l.Errorf("%s or %s granted twice", slot, g.Device)
				}
				slotsOf[slot], devicesOf[g.Device] = true, true
			}
		}
		if len(slotsOf) < 20 {
			l.Errorf("only %d of 30 slots in use after 50 rounds", len(slotsOf))
		}
	})
}

// TestResizeAndClaimsTakeTurns changes a pool's capacity while claims run. The change must wait for claims that use the old capacity, and
// later claims must wait for the change. In any order, new grants must never exceed the last capacity.
func TestResizeAndClaimsTakeTurns(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	devices := deviceNames(30)
	for round := range 4 {
		pool := fmt.Sprint("p", round)
		l.putPool(pool, 5)
		_, ids := l.queueBatch(store.Batch{Pool: pool}, devices...)
		var wait sync.WaitGroup
		for n := range 6 {
			wait.Go(func() {
				var claims []store.Claim
				for i := range 5 {
					claims = append(claims, l.newClaim(ids[n*5+i], devices[n*5+i], pool, (n*5+i)%20))
				}
				if _, err := l.Claim(l.Context(), claims, true); err != nil {
					l.Error(err)
				}
			})
		}
		wait.Go(func() { l.resizePool(pool, 20) })
		wait.Wait()
		l.resizePool(pool, 3)
		before, err := l.Grants(l.Context(), pool)
		l.must(err)
		for i, slot := range rand.Perm(20) {
			l.claimAll(l.newClaim(ids[i], devices[i], pool, slot))
		}
		after, err := l.Grants(l.Context(), pool)
		l.must(err)
		if len(after) > max(3, len(before)) {
			l.Fatalf("%d held, then %d at capacity 3", len(before), len(after))
		}
		l.reapAll()
	}
}

// TestGrantsAreReadWithoutPayloads checks that Grants does not read the payloads of the tasks, because background
// passes call it often.
func TestGrantsAreReadWithoutPayloads(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		_, ids := l.queueBatch(store.Batch{Pool: "p", Kind: "k", Payload: []byte(`{"a":1}`)}, "a")
		g := l.mustGrant(ids[0], "a", "p", 1)
		held, err := l.Grants(l.Context(), "p")
		l.must(err)
		if len(held) != 1 || held[0].LeaseID != g.LeaseID || held[0].Slot != 1 || held[0].Payload != nil {
			l.Errorf("%+v", held)
		}
	})
}
