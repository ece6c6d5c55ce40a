package store_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestBatchesAreListedByStateAndOrder checks three lists of batches, of all pools and of one pool: by state, by number of failures, and by
// end. A batch whose task is retried is open again.
func TestBatchesAreListedByStateAndOrder(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 9)
		l.putPool("q", 9)
		later := time.Now().Add(time.Hour)
		ids, tasks := map[string]int64{}, map[string][]int64{}
		for _, one := range []struct {
			name  string
			batch store.Batch
			tasks int
		}{
			{"one", store.Batch{Pool: "p"}, 1},
			{"three", store.Batch{Pool: "p"}, 3},
			{"two", store.Batch{Pool: "q"}, 2},
			{"runs", store.Batch{Pool: "q"}, 2},
			{"paused", store.Batch{Pool: "p", Paused: true}, 1},
			{"scheduled", store.Batch{Pool: "p", NotBefore: &later}, 1},
			{"cancelled", store.Batch{Pool: "p"}, 1},
			{"cancelling", store.Batch{Pool: "q"}, 1},
		} {
			made, of := l.queueBatch(one.batch, deviceNames(one.tasks)...)
			ids[one.name], tasks[one.name] = made.ID, of
		}
		for _, name := range []string{"cancelled", "cancelling"} {
			_, err := l.CancelBatch(l.Context(), "op", ids[name])
			l.must(err)
		}
		end := func(name string, count int, state store.TaskState) { // the first count tasks of the batch
			l.Helper()
			begin, err := l.Clock(l.Context())
			l.must(err)
			l.awaitCondition(func() bool {
				now, err := l.Clock(l.Context())
				return err == nil && now.Sub(begin) > 2*time.Millisecond
			})
			for _, task := range tasks[name][:count] {
				l.exec(`UPDATE tasks SET state = $2 WHERE id = $1`, task, string(state))
			}
			l.foldAll()
		}
		end("three", 3, store.TimedOut)
		end("one", 1, store.Failed)
		end("two", 2, store.Failed)
		end("runs", 1, store.Succeeded)
		end("cancelled", 1, store.Cancelled)
		expect := func(filter store.BatchFilter, want ...string) {
			l.Helper()
			var got []string
			for before := int64(0); ; {
				page, err := l.Batches(l.Context(), filter, before, 2)
				l.must(err)
				for _, b := range page {
					for name, id := range ids {
						if before = b.ID; id == before {
							got = append(got, name)
						}
					}
				}
				if len(page) < 2 {
					break
				}
			}
			if !slices.Equal(got, want) {
				l.Errorf("%+v: %q, want %q", filter, got, want)
			}
		}
		expect(store.BatchFilter{State: "open"}, "cancelling", "scheduled", "paused", "runs")
		expect(store.BatchFilter{State: "open", Pool: "p"}, "scheduled", "paused")
		for _, state := range []string{"paused", "scheduled", "cancelling", "cancelled"} {
			expect(store.BatchFilter{State: state}, state)
		}
		expect(store.BatchFilter{State: "running"}, "runs")
		expect(store.BatchFilter{State: "finished"}, "two", "three", "one")
		expect(store.BatchFilter{Order: store.ByFailures}, "three", "two", "one")
		expect(store.BatchFilter{Order: store.ByFailures, Pool: "p"}, "three", "one")
		expect(store.BatchFilter{Order: store.ByEnd}, "cancelled", "two", "one", "three")
		expect(store.BatchFilter{Order: store.ByEnd, Pool: "p"}, "cancelled", "one", "three")
		_, err := l.RetryTasks(l.Context(), "op", store.TaskFilter{Batch: ids["three"]}, 2)
		l.must(err)
		l.foldAll()
		expect(store.BatchFilter{State: "running"}, "runs", "three")
		expect(store.BatchFilter{Order: store.ByFailures}, "two", "three", "one")
	})
}
