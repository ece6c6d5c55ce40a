package simulator

import (
	"context"
	"errors"
	"testing"
	"time"
)

func newTestExternal(t *testing.T, capacity int, l *leases, readCapacity func() int) *External {
	t.Helper()
	e, err := NewExternal(t.Context(), "", capacity, l, readCapacity)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

func enterExternal(t *testing.T, e *External, slot int, token int64) *visit {
	t.Helper()
	v := &visit{task: 1, token: token, slot: slot, device: "d"}
	if err := v.enter(t.Context(), e.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.leave) // the garbage collector closes a connection that is unreachable
	return v
}

func TestExternalCountsWhoIsInside(t *testing.T) {
	t.Parallel()
	e := newTestExternal(t, 2, nil, nil)
	a, b := enterExternal(t, e, 0, 1), enterExternal(t, e, 1, 2)
	if got := e.Stats().Inside; got != 2 {
		t.Fatalf("inside %d, want 2", got)
	}
	if got := e.Stats().OverLimitInstants; got != 0 {
		t.Fatalf("over limit %d at the capacity, want 0", got)
	}
	c := enterExternal(t, e, 2, 3)
	if s := e.Stats(); s.OverLimitInstants != 1 || s.HighWater != 3 || s.Arrivals != 3 {
		t.Fatalf("with one too many: %+v", s)
	}
	// A device that has left is no longer counted, so the test need not wait before the next device enters.
	for i, v := range []*visit{a, b, c} {
		v.leave()
		if got := e.Stats().Inside; got != 2-i {
			t.Fatalf("inside %d after %d left, want %d", got, i+1, 2-i)
		}
	}
	if s := e.Stats(); s.HighWater != 3 || s.OverLimit <= 0 || s.InsideTime <= s.OverLimit {
		t.Errorf("at the end: %+v", s)
	}
}

func TestExternalJudgesTokens(t *testing.T) {
	t.Parallel()
	e := newTestExternal(t, 5, nil, nil)
	enterExternal(t, e, 3, 10).leave()
	enterExternal(t, e, 3, 10).leave() // the same grant again, as after a reboot
	enterExternal(t, e, 4, 9).leave()  // the same device in another slot
	if s := e.Stats(); s.StaleTokens != 0 || s.SharedSlots != 0 {
		t.Fatalf("innocent visits: %+v", s)
	}
	enterExternal(t, e, 3, 9).leave()
	if got := e.Stats().StaleTokens; got != 1 {
		t.Errorf("stale tokens %d, want 1", got)
	}
	enterExternal(t, e, 3, 11)
	enterExternal(t, e, 3, 12)
	if got := e.Stats().SharedSlots; got != 1 {
		t.Errorf("shared slots %d, want 1", got)
	}
}

func TestExternalTakesBackARaisedCapacity(t *testing.T) {
	t.Parallel()
	now := 1
	e := newTestExternal(t, 1, nil, func() int { return now })
	enterExternal(t, e, 0, 1)
	enterExternal(t, e, 1, 2)
	if got := e.Stats().OverLimitInstants; got != 1 {
		t.Fatalf("over limit %d, want 1", got)
	}
	now = 3
	enterExternal(t, e, 2, 3)
	if got := e.Stats().OverLimitInstants; got != 1 {
		t.Errorf("over limit %d after the capacity was raised, want 1", got)
	}
	if e.Capacity() != 3 {
		t.Errorf("capacity %d, want 3", e.Capacity())
	}
}

func TestExternalIgnoresWhoDoesNotSayHello(t *testing.T) {
	t.Parallel()
	e := newTestExternal(t, 1, nil, nil)
	v := &visit{device: "two words\nhello"}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_ = v.enter(ctx, e.Addr())
	silent := &visit{}
	if err := silent.enter(canceledContext(t), e.Addr()); !errors.Is(err, context.Canceled) {
		t.Errorf("enter = %v, want canceled", err)
	}
	v.leave()
	if got := e.Stats().Inside; got != 0 {
		t.Errorf("inside %d, want 0", got)
	}
	if _, err := NewExternal(t.Context(), "", 0, nil, nil); err == nil {
		t.Error("capacity 0 was accepted")
	}
}

func canceledContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
