package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const minuteAtMost = time.Minute // that a test waits for what must come

// road is what convoys call in these tests. A call waits until it is let go.
type road struct {
	*convoys[int, int]
	t     *testing.T
	begun chan []int // what is in a call that has begun
	open  chan error // lets one call go, with this error
}

// newRoad takes three in a call.
func newRoad(t *testing.T, lanes int) *road {
	t.Helper()
	r := &road{t: t, begun: make(chan []int), open: make(chan error)}
	r.convoys = newConvoys(r.travel, lanes, 3, time.Hour)
	return r
}

// travel doubles what it is given.
func (r *road) travel(_ context.Context, all []int) ([]int, error) {
	r.begun <- all
	if err := <-r.open; err != nil {
		return nil, err
	}
	out := make([]int, len(all))
	for i, n := range all {
		out[i] = 2 * n
	}
	return out, nil
}

// arrived is what became of a rider.
type arrived struct {
	in, out int
	err     error
}

// send starts a rider and returns once it waits or has left.
func (r *road) send(ctx context.Context, key string, in int) <-chan arrived {
	r.t.Helper()
	before := r.present(key)
	there := make(chan arrived, 1)
	go func() {
		out, err := r.ride(ctx, key, in)
		there <- arrived{in, out, err}
	}()
	until(r.t, "a rider waits or has left", func() bool { return r.present(key) != before })
	return there
}

// present counts those that wait, and the lanes in use.
func (r *road) present(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.all[key]
	if of == nil {
		return 0
	}
	return len(of.waiting) + 1000*of.underway
}

func (r *road) expect(want ...int) {
	r.t.Helper()
	var got []int
	select {
	case got = <-r.begun:
	case <-time.After(minuteAtMost):
		r.t.Fatalf("no call with %v", want)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Errorf("a call with %v, want %v", got, want)
	}
}

func (r *road) doubled(riders ...<-chan arrived) {
	r.t.Helper()
	for _, rider := range riders {
		if a := <-rider; a.err != nil || a.out != 2*a.in {
			r.t.Errorf("rider %d got %d, %v", a.in, a.out, a.err)
		}
	}
}

func (r *road) empty() {
	r.t.Helper()
	until(r.t, "no key is kept", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.all) == 0
	})
}

// until polls.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(minuteAtMost)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not within %s: %s", minuteAtMost, what)
		}
	}
}

// TestConvoyLeavesAtOnceAndTakesWhoCameMeanwhile: nobody waits for company; what
// comes up while all lanes are in use goes together, no more than fit, each with
// its own outcome.
func TestConvoyLeavesAtOnceAndTakesWhoCameMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRoad(t, 2)
	first := r.send(t.Context(), "a", 1)
	r.expect(1)
	second := r.send(t.Context(), "a", 2)
	r.expect(2)
	var later []<-chan arrived
	for in := 3; in <= 6; in++ {
		later = append(later, r.send(t.Context(), "a", in))
	}
	r.open <- nil // one of the two: they are alike
	r.expect(3, 4, 5)
	r.open <- nil
	r.expect(6)
	r.open <- nil
	r.open <- nil
	r.doubled(first, second)
	r.doubled(later...)
	r.empty()
}

// TestConvoysOfOtherKeysDoNotWait: a pool that is locked holds up no other one.
func TestConvoysOfOtherKeysDoNotWait(t *testing.T) {
	t.Parallel()
	r := newRoad(t, 1)
	stuck := r.send(t.Context(), "a", 1)
	r.expect(1)
	other := r.send(t.Context(), "b", 2)
	r.expect(2)
	r.open <- nil
	r.open <- nil
	r.doubled(stuck, other)
}

// TestConvoyThatFailsIsTriedForEachAlone: a bad one fails none of those beside it,
// unless the call may have taken effect.
func TestConvoyThatFailsIsTriedForEachAlone(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	t.Run("for certain", func(t *testing.T) {
		t.Parallel()
		r := newRoad(t, 1)
		riders := r.three()
		r.open <- bad
		r.expect(2)
		r.open <- nil
		r.expect(3)
		r.open <- bad
		r.expect(4)
		r.open <- nil
		r.doubled(riders[0], riders[2])
		if a := <-riders[1]; !errors.Is(a.err, bad) {
			t.Errorf("the bad one got %d, %v", a.out, a.err)
		}
		r.empty()
	})
	t.Run("or perhaps not", func(t *testing.T) {
		t.Parallel()
		r := newRoad(t, 1)
		riders := r.three()
		r.open <- fmt.Errorf("lost: %w", store.ErrOutcomeUnknown)
		for _, rider := range riders {
			if a := <-rider; !errors.Is(a.err, store.ErrOutcomeUnknown) {
				t.Errorf("rider %d got %d, %v", a.in, a.out, a.err)
			}
		}
		r.empty()
	})
}

// three are 2, 3 and 4 in one call, which has begun.
func (r *road) three() (riders []<-chan arrived) {
	r.t.Helper()
	first := r.send(r.t.Context(), "a", 1)
	r.expect(1)
	for in := 2; in <= 4; in++ {
		riders = append(riders, r.send(r.t.Context(), "a", in))
	}
	r.open <- nil
	r.doubled(first)
	r.expect(2, 3, 4)
	return riders
}

// TestWhoGivesUpDoesNotLeave: but what has left is waited for, since it takes effect.
func TestWhoGivesUpDoesNotLeave(t *testing.T) {
	t.Parallel()
	r := newRoad(t, 1)
	ctx, giveUp := context.WithCancel(t.Context())
	left := r.send(ctx, "a", 1)
	r.expect(1)
	waits := r.send(ctx, "a", 2)
	stays := r.send(t.Context(), "a", 3)
	giveUp()
	if a := <-waits; !errors.Is(a.err, context.Canceled) {
		t.Errorf("who gave up got %d, %v", a.out, a.err)
	}
	r.open <- nil
	r.doubled(left)
	r.expect(3)
	r.open <- nil
	r.doubled(stays)
}

// TestACallerWithLittleTimeEndsNobodysCall: it is not taken along, and the others share one call.
func TestACallerWithLittleTimeEndsNobodysCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, calls := make(chan struct{}), 0
		c := newConvoys(func(ctx context.Context, all []int) ([]int, error) {
			calls++
			<-gate
			select {
			case <-time.After(3 * time.Second):
				return slices.Clone(all), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, 1, 10, 5*time.Second)
		short, cancel := context.WithTimeout(t.Context(), 7*time.Second) // 4 s of it when it could leave
		defer cancel()
		var wait sync.WaitGroup
		send := func(ctx context.Context, in int, failed error) {
			wait.Go(func() {
				if _, err := c.ride(ctx, "a", in); !errors.Is(err, failed) {
					t.Errorf("rider %d: %v, want %v", in, err, failed)
				}
			})
			synctest.Wait() // it waits, for the gate or for the call before
		}
		send(t.Context(), 0, nil)
		send(short, 1, context.DeadlineExceeded)
		send(t.Context(), 2, nil)
		send(t.Context(), 3, nil)
		close(gate)
		wait.Wait()
		if calls != 2 {
			t.Errorf("%d calls, want one for the first and one for the others", calls)
		}
	})
}

// TestConvoyThatPanicsLeavesNobodyBehind.
func TestConvoyThatPanicsLeavesNobodyBehind(t *testing.T) {
	t.Parallel()
	c := newConvoys(func(context.Context, []int) ([]int, error) { panic("for the test") }, 1, 3, time.Hour)
	for range 2 {
		if _, err := c.ride(t.Context(), "a", 1); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("got %v", err)
		}
	}
}

// TestConvoysUnderLoad: each of many gets its own outcome, in far fewer calls.
func TestConvoysUnderLoad(t *testing.T) {
	t.Parallel()
	const riders = 500
	calls := 0
	gate := make(chan struct{})
	c := newConvoys(func(_ context.Context, all []int) ([]int, error) {
		<-gate
		calls++ // one lane: never at once
		return slices.Clone(all), nil
	}, 1, 50, time.Hour)
	var wait sync.WaitGroup
	for in := range riders {
		wait.Go(func() {
			if out, err := c.ride(t.Context(), "a", in); err != nil || out != in {
				t.Errorf("rider %d got %d, %v", in, out, err)
			}
		})
	}
	until(t, "all but one call's wait", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		of := c.all["a"]
		return of != nil && len(of.waiting) >= riders-50
	})
	close(gate)
	wait.Wait()
	if calls > 2*riders/50 {
		t.Errorf("%d calls for %d riders", calls, riders)
	}
}

// noting claims what it is given, and notes it.
type noting struct {
	Ledger
	claims []store.Claim
}

func (n *noting) Claim(_ context.Context, claims []store.Claim) ([]store.ClaimOutcome, error) {
	n.claims = append(n.claims, claims...)
	out := make([]store.ClaimOutcome, len(claims))
	for i, c := range claims {
		out[i] = store.ClaimOutcome{Status: store.ClaimGranted, Grant: store.Grant{Task: c.Task}}
	}
	return out, nil
}

// TestWhatWaitedTooLongIsNotClaimed: of those that go together, each by its own age.
func TestWhatWaitedTooLongIsNotClaimed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	ledger := &noting{}
	got, err := claimAll(t.Context(), ledger, now, []acquired{
		{store.Claim{Task: 1}, now.Add(-claimAge - 1)},
		{store.Claim{Task: 2}, now.Add(-claimAge)},
		{store.Claim{Task: 3}, now.Add(-time.Minute)},
		{store.Claim{Task: 4}, now},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, late := range []bool{true, false, true, false} {
		if got[i].late != late || (got[i].Status == store.ClaimGranted) == late || !late && got[i].Grant.Task != int64(i+1) {
			t.Errorf("claim %d: %+v", i+1, got[i])
		}
	}
	if len(ledger.claims) != 2 {
		t.Errorf("claimed %+v", ledger.claims)
	}
}
