package store_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestFromBatchToResult(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(l *ledger) {
		l.pool("ar:1", 2)
		batch, ids := l.batch(store.Batch{Pool: "ar:1", Kind: "speedtest", Payload: []byte(`{"server": "st1"}`), MaxAttempts: 2}, "a", "b")
		views, err := l.Views(l.Context(), []string{"b", "nobody", "a"})
		l.must(err)
		if len(views) != 3 || len(views[0].Candidates) != 1 || views[0].Candidates[0].Task != ids[1] || len(views[1].Candidates) != 0 {
			l.Fatalf("views: %+v", views)
		}
		g := l.grant(ids[0], "a", "ar:1", 1)
		if g.Slot != 1 || g.Attempt != 1 || g.Kind != "speedtest" || string(g.Payload) != `{"server": "st1"}` || g.Batch != batch.ID ||
			g.Remaining < time.Hour-time.Minute || g.Remaining > time.Hour || g.LeaseLength != time.Hour {
			l.Fatalf("grant: %+v", g)
		}
		views, err = l.Views(l.Context(), []string{"a"})
		l.must(err)
		if views[0].Grant == nil || views[0].Grant.Token != g.Token || len(views[0].Candidates) != 0 {
			l.Fatalf("view of a holder: %+v", views[0])
		}
		l.wantTask(ids[0], store.Dispatched)
		outcome := l.report(g, store.BySuccess, `{"down":  94.10}`)
		if outcome.Kind != store.ResultRecorded || outcome.State != store.Succeeded || outcome.Ended == nil || outcome.Ended.Lease != g.Lease {
			l.Fatalf("outcome: %+v", outcome)
		}
		if task := l.wantTask(ids[0], store.Succeeded); string(task.Output) != `{"down":  94.10}` || task.FinishedAt == nil {
			l.Fatalf("task: %+v", task)
		}
		if outcome := l.report(g, store.BySuccess, `{}`); outcome.Kind != store.ResultDuplicate {
			l.Fatalf("the same result again: %+v", outcome)
		}
	})
}
