package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func TestWhatIsOldIsRemovedInChunks(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	eachDialect(t, func(l *ledger) {
		l.pool("p", 3)
		_, ids := l.batch(store.Batch{Pool: "p"}, deviceNames(5)...)
		var last store.Grant
		for i, id := range ids {
			last = l.grant(id, deviceNames(5)[i], "p", 0)
			l.report(last, store.ByReject, "")
		}
		unknown := last
		unknown.Task = ids[0] // a token of another task
		l.report(unknown, store.BySuccess, "")
		ctx, _ := keyed(l, 1, "k", "x")
		_, err := l.CreateToken(ctx, "op", store.Token{Name: "n"}, []byte("n"))
		l.must(err)
		before := l.count("events")

		retain := func(keep time.Duration, want store.Retained) {
			l.Helper()
			got, err := l.Retain(l.Context(), keep, 3)
			l.must(err)
			if diff := cmp.Diff(want, got); diff != "" {
				l.Error(diff)
			}
		}
		retain(90*day, store.Retained{})
		l.exec(`UPDATE events SET at = at - $1 * {ms} WHERE id <= 4`, (91 * day).Milliseconds())
		l.exec(`UPDATE attempts SET ended_at = ended_at - $1 * {ms} WHERE token <= 4`, (91 * day).Milliseconds())
		l.exec(`UPDATE late_results SET received_at = received_at - $1 * {ms}`, (91 * day).Milliseconds())
		l.exec(`UPDATE answers SET answered_at = answered_at - $1 * {ms}`, (25 * time.Hour).Milliseconds())
		retain(0, store.Retained{Answers: 1}) // all else for ever
		retain(90*day, store.Retained{Events: 3, Attempts: 3, Results: 1})
		retain(90*day, store.Retained{Events: 1, Attempts: 1})
		retain(90*day, store.Retained{})
		if events, attempts := l.count("events"), l.count("attempts"); events != before-4 || attempts != 1 {
			l.Errorf("%d events of %d, %d attempts", events, before, attempts)
		}
		if n := l.count("tasks"); n != 5 {
			l.Errorf("%d tasks", n)
		}
	})
}
