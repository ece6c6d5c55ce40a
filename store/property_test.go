package store_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/store"
)

// model is the ledger in plain Go, for any sequence of calls.
type model struct {
	capacity map[string]int
	tasks    map[int64]*modelTask
	holders  map[string]map[int]int64 // pool -> slot -> task
	ended    map[int64]store.EndCause // token -> how it ended
	last     int64                    // token

	paused, cancelled map[int64]bool // batches
}

type modelTask struct {
	batch        int64
	pool, device string
	state        store.TaskState
	attempts     int
	grant        *store.Grant
	old          []store.Grant
}

const modelAttempts = 3

func (m *model) busy(device string) bool {
	for _, task := range m.tasks {
		if task.device == device && task.grant != nil {
			return true
		}
	}
	return false
}

// claim is what the ledger should answer.
func (m *model) claim(c store.Claim) store.ClaimStatus {
	capacity, known := m.capacity[c.Pool]
	if !known {
		return lost
	}
	above := 0
	for slot := range m.holders[c.Pool] {
		if slot > c.Slot {
			above++
		}
	}
	if holder, taken := m.holders[c.Pool][c.Slot]; taken && holder != c.Task || c.Slot+1+above > capacity {
		return conflict
	}
	task := m.tasks[c.Task]
	if task == nil || task.pool != c.Pool || task.device != c.Device || task.state != store.Pending || task.grant != nil || m.busy(c.Device) ||
		m.paused[task.batch] || m.cancelled[task.batch] {
		return lost
	}
	return granted
}

func (m *model) granted(g store.Grant) {
	m.tasks[g.Task].grant = &g
	if m.holders[g.Pool] == nil {
		m.holders[g.Pool] = map[int]int64{}
	}
	m.holders[g.Pool][g.Slot] = g.Task
	m.last = g.Token
}

func (m *model) end(id int64, cause store.EndCause) store.TaskState {
	task := m.tasks[id]
	s := settle(store.Ending{Cause: cause, Attempts: task.attempts, MaxAttempts: modelAttempts, CancelWhy: task.grant.CancelWhy})
	task.state = s.State
	if s.Counted {
		task.attempts++
	}
	m.ended[task.grant.Token] = cause
	task.old = append(task.old, *task.grant)
	delete(m.holders[task.pool], task.grant.Slot)
	task.grant = nil
	return s.State
}

// result is what the ledger should answer to a result of a grant that was made.
func (m *model) result(g store.Grant, cause store.EndCause) (store.ResultKind, store.TaskState) {
	task := m.tasks[g.Task]
	if task.grant != nil && task.grant.Token == g.Token {
		return store.ResultRecorded, m.end(g.Task, cause)
	}
	state := task.state
	if task.grant != nil {
		state = store.Dispatched
	}
	if m.ended[g.Token] != store.ByLapse {
		return store.ResultDuplicate, state
	}
	if cause == store.BySuccess && (state == store.Pending || state == store.TimedOut) {
		task.state, state = store.Succeeded, store.Succeeded
	}
	return store.ResultLate, state
}

func TestAnySequenceOfCallsKeepsTheLedgerRight(t *testing.T) {
	t.Parallel()
	l, runs := openSQLite(t), 0
	// The promise is about the order of commits, not about a power cut.
	l.exec("PRAGMA synchronous = OFF")
	rapid.Check(t, func(rt *rapid.T) {
		l.reapAll() // what the run before left
		_, err := l.EndCancelled(t.Context(), 1000)
		l.must(err)
		runs++
		m := &model{capacity: map[string]int{}, tasks: map[int64]*modelTask{}, holders: map[string]map[int]int64{}, ended: map[int64]store.EndCause{}, paused: map[int64]bool{}, cancelled: map[int64]bool{}}
		var devices, pools []string // of this run alone
		for _, name := range []string{"a", "b", "c", "d"} {
			devices = append(devices, fmt.Sprint(name, runs))
		}
		for _, name := range []string{"p", "q"} {
			pools = append(pools, fmt.Sprint(name, runs))
		}
		var all, batches []int64
		for _, pool := range pools {
			m.capacity[pool] = l.pool(pool, 3).Capacity
			for range 2 {
				b, ids := l.batch(store.Batch{Pool: pool, MaxAttempts: modelAttempts}, devices...)
				all, batches = append(all, ids...), append(batches, b.ID)
				for i, id := range ids {
					m.tasks[id] = &modelTask{batch: b.ID, pool: pool, device: devices[i], state: store.Pending}
				}
			}
		}
		anyTask, anyBatch := rapid.SampledFrom(all), rapid.SampledFrom(batches)

		rt.Repeat(map[string]func(*rapid.T){
			"claim": func(rt *rapid.T) {
				id := anyTask.Draw(rt, "id")
				c := l.to(id, m.tasks[id].device, m.tasks[id].pool, rapid.IntRange(0, 4).Draw(rt, "slot"))
				if rapid.IntRange(0, 9).Draw(rt, "foreign") == 0 {
					c.Device, c.Pool = rapid.SampledFrom(devices).Draw(rt, "device"), rapid.SampledFrom(pools).Draw(rt, "pool")
				}
				want := m.claim(c)
				outcomes, err := l.Claim(t.Context(), []store.Claim{c})
				if err != nil || outcomes[0].Status != want {
					rt.Fatalf("claim %+v: %+v, %v; want %d", c, outcomes, err, want)
				}
				if want == granted {
					g := outcomes[0].Grant
					if g.Token <= m.last || g.Attempt != m.tasks[id].attempts+1 {
						rt.Fatalf("grant %+v after token %d and %d attempts", g, m.last, m.tasks[id].attempts)
					}
					m.granted(g)
					if held := len(m.holders[g.Pool]); held > m.capacity[g.Pool] {
						rt.Fatalf("%d held in %s at capacity %d", held, g.Pool, m.capacity[g.Pool])
					}
				}
			},
			"result": func(rt *rapid.T) {
				task := m.tasks[anyTask.Draw(rt, "id")]
				grants := task.old
				if task.grant != nil {
					grants = append(slices.Clip(grants), *task.grant)
				}
				if len(grants) == 0 {
					rt.Skip("never granted")
				}
				g := rapid.SampledFrom(grants).Draw(rt, "grant")
				cause := rapid.SampledFrom([]store.EndCause{store.BySuccess, store.ByFailure, store.ByReject, store.ByReturn}).Draw(rt, "cause")
				kind, state := m.result(g, cause)
				o := l.RecordResults(t.Context(), []store.Result{{Device: g.Device, Task: g.Task, Token: g.Token, Cause: cause}}, settle)[0]
				if o.Err != nil || o.Kind != kind || o.State != state || (o.Ended != nil) != (kind == store.ResultRecorded) {
					rt.Fatalf("%s of %+v: %+v, want %s and %s", cause, g, o, kind, state)
				}
			},
			"reap": func(rt *rapid.T) {
				pool := rapid.SampledFrom(pools).Draw(rt, "pool")
				l.age(pool, 2*time.Hour)
				now, _, err := l.Clock(t.Context())
				l.must(err)
				reaped, err := l.Reap(t.Context(), now, rapid.IntRange(1, 3).Draw(rt, "limit"), settle)
				if err != nil {
					rt.Fatal(err)
				}
				for _, r := range reaped {
					if task := m.tasks[r.Grant.Task]; task.grant == nil || task.grant.Token != r.Grant.Token {
						rt.Fatalf("reaped %+v, which is not held", r.Grant)
					}
					if state := m.end(r.Grant.Task, store.ByLapse); state != r.State {
						rt.Fatalf("reaped to %s, want %s", r.State, state)
					}
				}
			},
			"cancel": func(rt *rapid.T) {
				id := anyTask.Draw(rt, "id")
				task := m.tasks[id]
				got, err := l.CancelTask(t.Context(), "op", id)
				want := task.state
				switch {
				case task.grant != nil:
					want, task.grant.CancelWhy = store.Dispatched, "cancelled"
				case task.state == store.Pending:
					want, task.state = store.Cancelled, store.Cancelled
				}
				if err != nil || got.State != want {
					rt.Fatalf("cancelled to %s, %v; want %s", got.State, err, want)
				}
			},
			"pause": func(rt *rapid.T) {
				id := anyBatch.Draw(rt, "id")
				b, err := l.PauseBatch(t.Context(), "op", id, "why not")
				if m.paused[id] = m.paused[id] || !m.cancelled[id]; err != nil || b.Paused != m.paused[id] {
					rt.Fatalf("paused %t, %v; want %t", b.Paused, err, m.paused[id])
				}
			},
			"resume": func(rt *rapid.T) {
				id := anyBatch.Draw(rt, "id")
				m.paused[id] = false
				if b, err := l.ResumeBatch(t.Context(), "op", id); err != nil || b.Paused {
					rt.Fatalf("paused %t, %v", b.Paused, err)
				}
			},
			"cancel batch": func(rt *rapid.T) {
				id := anyBatch.Draw(rt, "id")
				if rapid.IntRange(0, 4).Draw(rt, "seldom") != 0 {
					rt.Skip("too many would leave nothing to do")
				}
				if b, err := l.CancelBatch(t.Context(), "op", id); err != nil || b.CancelledAt == nil {
					rt.Fatalf("%+v, %v", b, err)
				}
				m.cancelled[id] = true
				for _, task := range m.tasks {
					if task.batch == id && task.grant != nil {
						task.grant.CancelWhy = "cancelled"
					}
				}
			},
			"end cancelled": func(rt *rapid.T) {
				want := 0
				for _, task := range m.tasks {
					if m.cancelled[task.batch] && task.state == store.Pending && task.grant == nil {
						task.state = store.Cancelled
						want++
					}
				}
				if n, err := l.EndCancelled(t.Context(), 1000); err != nil || n != want {
					rt.Fatalf("ended %d, %v; want %d", n, err, want)
				}
			},
			"fold": func(rt *rapid.T) {
				limit := rapid.IntRange(1, 4).Draw(rt, "limit")
				if n, aborted, err := l.Fold(t.Context(), limit); err != nil || n > limit || len(aborted) > 0 {
					rt.Fatalf("folded %d, aborted %v, %v", n, aborted, err)
				}
			},
			"resize": func(rt *rapid.T) {
				pool := rapid.SampledFrom(pools).Draw(rt, "pool")
				m.capacity[pool] = l.pool(pool, rapid.IntRange(0, 6).Draw(rt, "capacity")).Capacity
			},
			"": func(rt *rapid.T) {
				m.check(rt, l)
				m.checkCounts(rt, l, batches)
			},
		})
	})
}

// check compares what is stored with the model.
func (m *model) check(rt *rapid.T, l *ledger) {
	rows, err := l.DB().QueryContext(l.Context(), `
		SELECT t.id, t.state, t.attempts, coalesce(g.slot, -1) FROM tasks t LEFT JOIN grants g ON g.task = t.id
		WHERE t.id >= $1`, slices.Min(slices.Collect(maps.Keys(m.tasks))))
	l.must(err)
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		var id int64
		var state store.TaskState
		var attempts, slot int
		l.must(rows.Scan(&id, &state, &attempts, &slot))
		want, wantSlot := m.tasks[id], -1
		if want.grant != nil {
			wantSlot = want.grant.Slot
		}
		if state != want.state || attempts != want.attempts || slot != wantSlot {
			rt.Fatalf("task %d is %s after %d attempts on slot %d, want %s after %d on %d", id, state, attempts, slot, want.state, want.attempts, wantSlot)
		}
	}
	if l.must(rows.Err()); n != len(m.tasks) {
		rt.Fatalf("%d tasks, want %d", n, len(m.tasks))
	}
}

// checkCounts compares the counts of all batches of the run with the model.
func (m *model) checkCounts(rt *rapid.T, l *ledger, batches []int64) {
	want := map[int64]map[store.TaskState]int64{}
	for _, task := range m.tasks {
		if want[task.batch] == nil {
			want[task.batch] = map[store.TaskState]int64{}
		}
		state := task.state
		if task.grant != nil {
			state = store.Dispatched
		}
		want[task.batch][state]++
	}
	list, err := l.Batches(l.Context(), slices.Max(batches)+1, len(batches))
	l.must(err)
	for _, b := range list {
		if !maps.Equal(b.Counts, want[b.ID]) {
			rt.Fatalf("batch %d has %v, want %v", b.ID, b.Counts, want[b.ID])
		}
	}
}
