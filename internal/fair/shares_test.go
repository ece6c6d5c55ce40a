package fair_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/internal/fair"
)

func TestSharesKeepRoomForOthers(t *testing.T) {
	t.Parallel()
	shares := fair.NewShares(20, 10)
	take := func(who string, admin, want bool) (leave func()) {
		t.Helper()
		leave, ok := shares.TryStart(who, admin)
		if ok != want {
			t.Fatalf("%s: %v, want %v", who, ok, want)
		}
		return leave
	}
	var last func()
	for range 10 {
		last = take("ann", false, true)
	}
	take("ann", false, false)
	for range 8 {
		take("bob", false, true)
	}
	take("cid", false, false) // the last tenth is reserved for admins
	take("eve", true, true)
	last()
	last() // a second call has no effect
	take("cid", false, false)
	take("eve", true, true)
	take("eve", true, true)
	take("eve", true, false)
}

func TestSharesAwaitRoom(t *testing.T) {
	t.Parallel()
	shares := fair.NewShares(2, 1)
	leave, _ := shares.TryStart("ann", false)
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := shares.StartWhenFree(short, "bob", false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	got := make(chan error)
	go func() {
		_, err := shares.StartWhenFree(t.Context(), "bob", false)
		got <- err
	}()
	leave()
	if err := <-got; err != nil {
		t.Error(err)
	}
}
