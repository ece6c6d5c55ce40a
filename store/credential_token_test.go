package store_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestNamesOfTokensAreOneOperators checks that a new operator token cannot have the name of another valid token or of a built-in actor. So
// the name of an actor in the audit log is unique.
func TestNamesOfTokensAreOneOperators(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		past, hashes := time.Now().Add(-time.Second), 0
		create := func(name string, expires *time.Time) (store.Token, error) {
			hashes++
			return l.CreateToken(l.Context(), "op", store.Token{Name: name, Role: "viewer", ExpiresAt: expires}, []byte{byte(hashes)})
		}
		made, err := create("ci", nil)
		l.must(err)
		for _, name := range []string{"ci", "reaper", "bootstrap", " Reaper ", "dispatcher", "command line", "nobody", "canceller", "retention"} {
			if _, err := create(name, nil); !errors.Is(err, store.ErrExists) {
				l.Errorf("%q: %v, want it refused", name, err)
			}
		}
		_, err = l.RevokeToken(l.Context(), "op", made.ID)
		l.must(err)
		for range 2 { // after a revoked token, and after an expired token
			_, err = create("ci", &past)
			l.must(err)
		}
		if list, err := l.OperatorTokens(l.Context(), 0, true, 10); err != nil || len(list) != 1 {
			l.Errorf("tokens %+v, %v; want the last one", list, err)
		}
	})
}

func TestTokensOfOneNameAtOnce(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		var made atomic.Int64
		var wait sync.WaitGroup
		for i := range 8 {
			wait.Go(func() {
				_, err := l.CreateToken(l.Context(), "op", store.Token{Name: "ci", Role: "viewer"}, []byte{byte(i)})
				if err == nil {
					made.Add(1)
				} else if !errors.Is(err, store.ErrExists) {
					l.Error(err)
				}
			})
		}
		wait.Wait()
		if made.Load() != 1 {
			l.Errorf("%d tokens of one name", made.Load())
		}
	})
}
