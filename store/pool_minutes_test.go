package store_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// countMinutes adds all complete events to the counts per minute of their pools, three events at a time.
func (l *ledger) countMinutes() {
	l.Helper()
	mark, err := l.ReadEventPosition(l.Context(), -1)
	l.must(err)
	for {
		n, err := l.CountMinutes(l.Context(), mark.Last, 3)
		l.must(err)
		if n < 3 {
			return
		}
	}
}

// heldAt computes, from the counts per minute of a pool, the number of held slots and the capacity at the end of
// the minute that is minutesAgo minutes in the past.
func heldAt(m store.PoolMinutes, minutesAgo int64) (held, capacity int) {
	held, capacity = m.Held, m.CapacityBefore
	for _, one := range m.Minutes {
		if one.At > m.Now.Unix()/60-minutesAgo {
			held -= one.Granted - one.Ended
		} else if one.Capacity >= 0 {
			capacity = one.Capacity
		}
	}
	return held, capacity
}

// TestMinutesTellWhatWasHeld checks that the counts per minute of a pool show how many slots were held at each
// time, whenever the events are counted. Each event counts once, even if several replicas count.
func TestMinutesTellWhatWasHeld(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		l.putPool("q", 3)
		names := deviceNames(6)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3}, names...)
		grants := map[int]store.Grant{}
		type state struct{ Held, Capacity int }
		var want []state
		for i, act := range []func(){
			func() {
				for n := range 5 {
					grants[n] = l.mustGrant(ids[n], names[n], "p", n)
				}
			},
			func() { l.recordResult(grants[0], store.BySuccess, ""); l.recordResult(grants[1], store.ByFailure, "") },
			func() { l.putPool("p", 7) },
			func() {
				l.must(errOf(l.forceRelease(2, store.ForcedRelease{AtOnce: true})))
				l.mustGrant(ids[1], names[1], "p", 6)
			},
			func() { l.awaitLapsed(); l.reapAll() },
			func() { l.mustGrant(ids[5], names[5], "p", 5) },
		} {
			act()
			pool, err := l.Pool(l.Context(), "p")
			l.must(err)
			want = append(want, state{l.countRows("grants WHERE pool = 'p'"), pool.Capacity})
			if i%2 == 1 {
				l.countMinutes()
			}
			l.ageEvents(time.Hour)
			l.exec(`UPDATE pool_minutes SET minute = minute - 60`)
		}
		check := func(when string) {
			l.Helper()
			m, err := l.Minutes(l.Context(), "p", 24*time.Hour)
			l.must(err)
			var got []state
			for i := range want {
				held, capacity := heldAt(m, int64(60*(len(want)-i)-1))
				got = append(got, state{held, capacity})
			}
			if diff := cmp.Diff(want, got); diff != "" {
				l.Errorf("%s: %s%+v", when, diff, m)
			}
		}
		check("partly counted")
		var replicas sync.WaitGroup
		for range 3 {
			replicas.Go(l.countMinutes)
		}
		replicas.Wait()
		check("all counted")
		all, err := l.Minutes(l.Context(), "p", 24*time.Hour)
		l.must(err)
		failed, lapsed := 0, 0
		for _, one := range all.Minutes {
			failed, lapsed = failed+one.Failed, lapsed+one.Lapsed
		}
		if lapsed == 0 || failed != lapsed+1 {
			l.Errorf("%d failed and %d lapsed, want one failure by a device and the lapses", failed, lapsed)
		}
		m, err := l.Minutes(l.Context(), "p", 150*time.Minute)
		l.must(err)
		if lapsed := m.Minutes[0].Lapsed; m.CapacityBefore != 7 || lapsed == 0 || lapsed != m.Minutes[0].Ended || m.Held != 1 {
			l.Errorf("the last hours: %+v", m)
		}
		if other, err := l.Minutes(l.Context(), "q", 24*time.Hour); err != nil || other.Held != 0 || len(other.Minutes) != 1 || other.Minutes[0].Capacity != 3 {
			l.Errorf("another pool: %+v, %v", other, err)
		}
		if _, err := l.Minutes(l.Context(), "nowhere", time.Hour); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("a pool that is not there: %v", err)
		}
	})
}

func TestOldMinutesGo(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.exec(`INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, failed, capacity) VALUES ('p', {this minute}, 1, 0, 0, 0, 1),
			('p', {this minute} - 7 * 24 * 60, 1, 0, 0, 0, 1), ('p', {this minute} - 8 * 24 * 60 - 1, 1, 0, 0, 0, 1), ('q', {this minute} - 9 * 24 * 60, 1, 0, 0, 0, 1)`)
		removed, err := l.Retain(l.Context(), 0, 100)
		l.must(err)
		if removed.Minutes != 2 || l.countRows("pool_minutes WHERE pool = 'p'") != 2 {
			l.Errorf("removed: %+v", removed)
		}
	})
}
