package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// newsReader reads the news of a ledger (rows by which a transaction tells replicas what changed) in the order of their ids.
type newsReader struct {
	*ledger
	lastID int64
}

// readNews returns the news that were added since its previous call, as text.
func (r *newsReader) readNews() string {
	r.Helper()
	read, err := r.NewsSince(r.Context(), r.lastID)
	r.must(err)
	var all []string
	for _, n := range read.Rows {
		if n.ID <= r.lastID || n.ID > read.Newest {
			r.Errorf("news %d after %d, of %d", n.ID, r.lastID, read.Newest)
		}
		switch r.lastID = n.ID; {
		case n.Batch != 0:
			all = append(all, fmt.Sprint("batch ", n.Batch))
		case n.Device != "":
			all = append(all, n.Device)
		case n.Pool != "":
			all = append(all, "pool "+n.Pool)
		default:
			all = append(all, "all")
		}
	}
	return strings.Join(all, " ")
}

func (r *newsReader) expectNews(what, want string) {
	r.Helper()
	if got := r.readNews(); got != want {
		r.Errorf("%s: news %q, want %q", what, got, want)
	}
}

// openDevices returns the devices that ForEachOpenDevice finds for a batch, sorted and without duplicates.
func (l *ledger) openDevices(batch int64) string {
	l.Helper()
	var all []string
	l.must(l.ForEachOpenDevice(l.Context(), batch, func(device string) { all = append(all, device) }))
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// TestOpenTasksAreFoundBeyondAPart checks ForEachOpenDevice, which reads open tasks in parts. Here the last part begins in the first pool
// and ends in the second pool. The device in the second pool must be found, too, even though its name comes before the names of all devices
// in the first pool.
func TestOpenTasksAreFoundBeyondAPart(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		l.putPool("q", 1)
		b, _ := l.queueBatch(store.Batch{Pool: "p"}, "d")
		l.queueBatch(store.Batch{Pool: "q"}, "a")
		l.exec(`INSERT INTO tasks (batch, pool, device) WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more WHERE n < $2)
			SELECT $1, 'p', 'd' || n FROM more`, b.ID, store.RowsPerOpenPart)
		for _, of := range []struct {
			batch int64
			want  int
		}{{0, store.RowsPerOpenPart + 2}, {b.ID, store.RowsPerOpenPart + 1}} {
			found := map[string]bool{}
			l.must(l.ForEachOpenDevice(l.Context(), of.batch, func(device string) { found[device] = true }))
			if len(found) != of.want {
				l.Errorf("%d devices have open tasks of batch %d, want %d", len(found), of.batch, of.want)
			}
		}
	})
}

// TestWhatMakesWorkIsNews makes all changes that replicas must learn about. After some changes a device may start a task, after others
// devices wait for other reasons, and after others somebody else may act for a device. Each change must add a row to the news.
func TestWhatMakesWorkIsNews(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		r := &newsReader{ledger: l}
		r.expectNews("an empty ledger", "all")
		l.putPool("p", 2)
		_, err := l.EnsureDevices(l.Context(), "a")
		l.must(err)
		r.expectNews("a pool and a device", "pool p")
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, "a", "b", "a")
		r.expectNews("a batch", fmt.Sprint("batch ", b.ID))
		if got := l.openDevices(b.ID) + "/" + l.openDevices(0) + "/" + l.openDevices(b.ID+1); got != "a b/a b/" {
			l.Errorf("open tasks of %q", got)
		}
		_, err = l.CancelTask(l.Context(), "op", ids[1])
		l.must(err)
		r.expectNews("a cancelled task", "b")
		if got := l.openDevices(b.ID) + "/" + l.openDevices(0); got != "a/a" {
			l.Errorf("open tasks of %q", got)
		}
		_, err = l.RetryTask(l.Context(), "op", ids[1])
		l.must(err)
		r.expectNews("a retried task", "b")
		later := time.Now().Add(time.Hour)
		_, err = l.ChangeBatch(l.Context(), "op", b.ID, func(b *store.Batch) error { b.NotAfter = &later; return nil })
		l.must(err)
		r.expectNews("another end", fmt.Sprint("pool p batch ", b.ID))
		_, err = l.ChangeBatch(l.Context(), "op", b.ID, func(b *store.Batch) error { b.Priority++; return nil })
		l.must(err)
		r.expectNews("another priority", "pool p")
		for range 2 {
			_, err = l.PauseBatch(l.Context(), "op", b.ID, "")
			l.must(err)
		}
		r.expectNews("a pause, twice", "pool p")
		_, err = l.ResumeBatch(l.Context(), "op", b.ID)
		l.must(err)
		r.expectNews("a resumed batch", "pool p")
		l.putPool("p", 3)
		r.expectNews("another capacity", "pool p")
		_, _, err = l.PutProfile(l.Context(), "op", store.Profile{Name: "slow", Limits: []byte(`[]`)})
		l.must(err)
		r.expectNews("a profile", "pool *")
		_, err = l.ChangeDevice(l.Context(), "op", "a", func(spec *store.DeviceSpec) error { spec.Profile = "slow"; return nil })
		l.must(err)
		r.expectNews("the profile of a device", "a")
		_, err = l.ChangeDevices(l.Context(), "op", []string{"a"}, false, func(_ string, spec *store.DeviceSpec) error { spec.Profile = ""; return nil })
		l.must(err)
		r.expectNews("the profiles of many devices", "a")
		l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
		l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
		r.expectNews("a block, twice", "a")
		l.must(l.MarkOwnTokens(l.Context(), "a", "unknown"))
		l.must(l.MarkOwnTokens(l.Context(), "a"))
		r.expectNews("the first use of a token, and another one", "a")
		l.rotateToken("a second token", 0)
		r.expectNews("one more token", "a")
		_, err = l.DeleteDevice(l.Context(), "op", "a", true)
		l.must(err)
		r.expectNews("a deleted device", "a")
		_, err = l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		r.expectNews("a restore", "all")
		_, err = l.CancelBatch(l.Context(), "op", b.ID)
		l.must(err)
		r.expectNews("a cancelled batch", "pool p")
	})
}

// TestNewsAreToldAfterTheirCommit checks that the function of OnNews is called after the commit of a transaction with news. The function must
// get the newest id, and NewsSince must then return the row with this id. After a rollback it must not be called.
func TestNewsAreToldAfterTheirCommit(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		r := &newsReader{ledger: l}
		l.putPool("p", 2)
		r.readNews()
		var told []int64
		l.OnNews(func(ctx context.Context, newest int64) {
			read, err := l.NewsSince(ctx, r.lastID)
			l.must(err)
			if read.Newest != newest {
				l.Errorf("told of %d when the newest is %d", newest, read.Newest)
			}
			told = append(told, newest)
		})
		b, _ := l.queueBatch(store.Batch{Pool: "p"}, "a")
		errBad := errors.New("no task")
		_, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, func(yield func(store.NewTask, error) bool) {
			yield(store.NewTask{Device: "c"}, errBad)
		})
		if !errors.Is(err, errBad) {
			l.Error(err)
		}
		if r.expectNews("of a good and a bad batch", fmt.Sprint("batch ", b.ID)); !slices.Equal(told, []int64{r.lastID}) {
			l.Errorf("told of %v", told)
		}
	})
}

// TestIDsOfNewsRiseWithTheirCommits checks a reader of the news that always continues behind the newest id that it has read. It must not
// miss news of transactions that were still open during a reading.
func TestIDsOfNewsRiseWithTheirCommits(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const writers, each = 8, 30
		devices := make([]string, writers)
		for i := range devices {
			devices[i] = fmt.Sprint("d", i)
		}
		_, err := l.EnsureDevices(l.Context(), devices...)
		l.must(err)
		r := &newsReader{ledger: l}
		r.readNews()
		var writing sync.WaitGroup
		for _, device := range devices {
			writing.Go(func() {
				for i := range each {
					if err := l.SetBlocked(l.Context(), "op", device, i%2 == 0, ""); err != nil {
						l.Error(err)
					}
				}
			})
		}
		ended := make(chan struct{})
		go func() { writing.Wait(); close(ended) }()
		read := 0
		for over := false; !over; {
			select {
			case <-ended:
				over = true // Read once more.
			default:
			}
			read += len(strings.Fields(r.readNews()))
		}
		if read != writers*each {
			l.Errorf("%d news were read, want all %d", read, writers*each)
		}
	})
}

// TestOldNewsAreRemoved checks that all old news are deleted except the newest row. Readers learn the newest id from this row.
func TestOldNewsAreRemoved(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		l.queueBatch(store.Batch{Pool: "p"}, "a")
		l.queueBatch(store.Batch{Pool: "p"}, "b")
		before, err := l.NewsSince(l.Context(), 0)
		l.must(err)
		l.exec(`UPDATE news SET at = at - $1 * {ms}`, (2 * time.Hour).Milliseconds())
		_, err = l.Retain(l.Context(), 0, 100)
		l.must(err)
		after, err := l.NewsSince(l.Context(), 0)
		l.must(err)
		if after.Newest != before.Newest || after.Oldest != before.Newest || len(after.Rows) != 1 {
			l.Errorf("of %+v is left %+v", before, after)
		}
	})
}
