package deadline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/internal/deadline"
)

func TestShareEndsAfterAPartOfTheTimeLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		for _, want := range []time.Duration{2 * time.Second, 1500 * time.Millisecond} { // each time a quarter of the time that is left
			began := time.Now()
			one, cancel := deadline.Share(all, 0.25)
			<-one.Done()
			cancel()
			if took := time.Since(began); took != want {
				t.Errorf("ended after %s, want %s", took, want)
			}
		}
	})
}

func TestShareOfNoDeadlineHasNone(t *testing.T) {
	t.Parallel()
	one, cancel := deadline.Share(context.Background(), 0.25)
	defer cancel()
	if _, limited := one.Deadline(); limited {
		t.Error("a deadline out of nothing")
	}
}
