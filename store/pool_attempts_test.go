package store_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestRecentAttempts checks the summary of the attempts that ended within the last minutes. Failed attempts count, even if their tasks are
// tried again. The most frequent errors come first. Attempts of other pools, of other batches and of earlier times do not count.
func TestRecentAttempts(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 10)
		l.putPool("other", 10)
		first, tasks := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3}, "a", "b", "c", "d", "e")
		second, more := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, "f", "g")
		_, elsewhere := l.queueBatch(store.Batch{Pool: "other", MaxAttempts: 1}, "h")
		end := func(task int64, device, pool string, slot int, cause store.EndCause, text string) {
			l.Helper()
			g := l.mustGrant(task, device, pool, slot)
			l.must(l.RecordResults(l.Context(), []store.Result{{Device: device, Task: task, Token: g.Token, Cause: cause, Error: text}}, settleEnding)[0].Err)
		}
		end(tasks[0], "a", "p", 0, store.ByFailure, "no route")
		l.exec(`UPDATE events SET at = at - 301000 * {ms}`)
		end(tasks[1], "b", "p", 0, store.ByFailure, "refused")
		end(tasks[2], "c", "p", 0, store.ByFailure, "refused")
		end(tasks[3], "d", "p", 0, store.BySuccess, "")
		end(more[0], "f", "p", 0, store.ByReject, "not here")
		end(elsewhere[0], "h", "other", 0, store.ByFailure, "refused")
		l.mustGrant(tasks[4], "e", "p", 0)
		l.reapAll()
		l.mustGrant(more[1], "g", "p", 0) // is in force
		if _, err := l.RecentAttempts(l.Context(), store.TaskScope{Batch: second.ID + 9}); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("a batch that does not exist: %v", err)
		}
		_, err := l.EnsureDevices(l.Context(), "b")
		l.must(err)
		l.exec(`UPDATE devices SET tags = '{"model":"M3"}', attributes = '{"firmware":"7.2"}' WHERE id = 'b'`)
		now, err := l.Clock(l.Context())
		l.must(err)
		for _, c := range []struct {
			scope         store.TaskScope
			ended, failed int
			errors        []store.RecentError
		}{
			{store.TaskScope{Pool: "p"}, 5, 4, []store.RecentError{{Text: "refused", Attempts: 2}, {Text: "", Attempts: 1}, {Text: "not here", Attempts: 1}}},
			{store.TaskScope{Batch: first.ID}, 4, 3, []store.RecentError{{Text: "refused", Attempts: 2}, {Text: "", Attempts: 1}}},
			{store.TaskScope{Batch: second.ID}, 1, 1, []store.RecentError{{Text: "not here", Attempts: 1}}},
		} {
			got, err := l.RecentAttempts(l.Context(), c.scope)
			l.must(err)
			if got.Ended != c.ended || got.Failed != c.failed || !slices.Equal(got.Errors, c.errors) || got.IsSample {
				l.Errorf("%+v: %+v, want %+v", c.scope, got, c)
			}
			ended, failed := 0, 0
			isSample, err := l.AttemptsByDevice(l.Context(), c.scope, now.Add(-5*time.Minute), func(of store.DeviceAttempts) {
				ended, failed = ended+of.Ended, failed+of.Failed
			})
			l.must(err)
			if ended != c.ended || failed != c.failed || isSample {
				l.Errorf("%+v: by device %d of %d failed, want %+v", c.scope, failed, ended, c)
			}
		}
		of, devices := store.DeviceAttempts{}, 0
		_, err = l.AttemptsByDevice(l.Context(), store.TaskScope{Pool: "p"}, time.Time{}, func(one store.DeviceAttempts) {
			if devices++; one.Tags != nil {
				of = one
			}
		})
		l.must(err)
		if devices != 6 || of.Failed != 1 || of.Ended != 1 || of.Tags["model"] != "M3" || strings.ReplaceAll(string(of.Attributes), " ", "") != `{"firmware":"7.2"}` {
			l.Errorf("%d devices with attempts in the last hour, of one %+v", devices, of)
		}
	})
}

// TestRecentAttemptsReadABoundedPartOfTheLog checks a pool with more recent events than are read: the latest attempts are counted, and the
// summary says that it is a sample. At most five errors are kept.
func TestRecentAttemptsReadABoundedPartOfTheLog(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 10)
		l.exec(`INSERT INTO events (at, kind, actor, actor_kind, pool, token, detail)
			WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10100)
			SELECT {now}, 'task.failed', 'd', 'device', 'p', n, '' FROM numbers`)
		l.exec(`INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by, error)
			WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 10100)
			SELECT n, n, 1, 'd', 'p', 0, '', {now}, {now}, 'failed', 'error ' || CAST(n % 7 AS text) FROM numbers`)
		got, err := l.RecentAttempts(l.Context(), store.TaskScope{Pool: "p"})
		l.must(err)
		if got.Ended != 2000 || got.Failed != 2000 || !got.IsSample || len(got.Errors) != 5 {
			l.Errorf("%+v", got)
		}
		ended := 0
		isSample, err := l.AttemptsByDevice(l.Context(), store.TaskScope{Pool: "p"}, time.Time{}, func(of store.DeviceAttempts) { ended += of.Ended })
		l.must(err)
		if ended != 10_000 || !isSample {
			l.Errorf("%d attempts by device, want the latest 10,000", ended)
		}
		for _, e := range got.Errors {
			if e.Attempts < 285 || e.Attempts > 286 || !strings.HasPrefix(e.Text, "error ") {
				l.Errorf("%+v", e)
			}
		}
	})
}
