package store_test

import "testing"

// TestAnEventUnderWayIsNotSettled checks an event of a transaction that is still open. The event is not complete, so readers must wait for
// it. The open transaction is the newest transaction and has the highest event id, which is the most difficult case: no later transaction
// shows that it is open.
func TestAnEventUnderWayIsNotSettled(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	held, err := l.DB().BeginTx(t.Context(), nil)
	l.must(err)
	defer held.Rollback()
	_, err = held.ExecContext(t.Context(), `INSERT INTO events (at, kind) VALUES (now(), 'held')`)
	l.must(err)
	mark, err := l.ReadEventPosition(t.Context(), -1)
	l.must(err)
	if settled, err := l.EventsComplete(t.Context(), mark); mark.Last != 1 || settled || err != nil {
		t.Fatalf("up to %d settled: %t, %v; want it to wait for the event", mark.Last, settled, err)
	}
	l.must(held.Commit())
	l.awaitCondition(func() bool { // Other tests also have transactions on this server.
		settled, err := l.EventsComplete(t.Context(), mark)
		l.must(err)
		return settled
	})
}

// TestLookingForNewEventsIsFree checks that a search for new events in an idle ledger does not wait and uses no transaction ids.
func TestLookingForNewEventsIsFree(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		first, err := l.ReadEventPosition(l.Context(), 0)
		l.must(err)
		again, err := l.ReadEventPosition(l.Context(), first.Last)
		l.must(err)
		if settled, err := l.EventsComplete(l.Context(), again); again.Last != first.Last || again == first && l.Dialect() == "postgres" || !settled || err != nil {
			l.Errorf("%+v, then %+v: settled %t, %v", first, again, settled, err)
		}
	})
}
