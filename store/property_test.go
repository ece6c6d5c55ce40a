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

// model computes the expected state of the ledger in plain Go, for any sequence of calls.
type model struct {
	capacity map[string]int
	tasks    map[int64]*modelTask
	holders  map[string]map[int]int64 // task by pool and slot
	ended    map[int64]store.EndCause // end cause by token
	last     int64                    // the newest token

	paused, cancelled, hurried map[int64]bool // by batch
}

type modelTask struct {
	batch        int64
	pool, device string
	state        store.TaskState
	attempts     int
	grant        *store.Grant
	old          []store.Grant

	early, late, returned bool
}

// over reports whether a waiting task must no longer start.
func (m *model) over(task *modelTask) bool {
	return task.late || m.hurried[task.batch] && task.attempts == 0 && !task.returned && !task.early
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

// claim returns the status that the ledger should return for a claim.
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
		m.paused[task.batch] || m.cancelled[task.batch] || task.early || m.over(task) {
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
	task.returned = task.returned || s.Returned
	m.ended[task.grant.Token] = cause
	task.old = append(task.old, *task.grant)
	delete(m.holders[task.pool], task.grant.Slot)
	task.grant = nil
	return s.State
}

// result applies a result of an earlier grant, and returns the kind and the state that the ledger should return.
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

// modelRun makes one sequence of calls to the ledger and to its model. It has its own devices, pools and
// batches.
type modelRun struct {
	*model
	l              *ledger
	devices, pools []string
	all, batches   []int64
}

func newModelRun(l *ledger, number int) *modelRun {
	r := &modelRun{l: l, model: &model{
		capacity: map[string]int{}, tasks: map[int64]*modelTask{}, holders: map[string]map[int]int64{}, ended: map[int64]store.EndCause{},
		paused: map[int64]bool{}, cancelled: map[int64]bool{}, hurried: map[int64]bool{},
	}}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.devices = append(r.devices, fmt.Sprint(name, number))
	}
	for _, name := range []string{"p", "q"} {
		pool := fmt.Sprint(name, number)
		r.pools = append(r.pools, pool)
		r.capacity[pool] = l.pool(pool, 3).Capacity
		for range 2 {
			b, ids := l.batch(store.Batch{Pool: pool, MaxAttempts: modelAttempts}, r.devices...)
			r.all, r.batches = append(r.all, ids...), append(r.batches, b.ID)
			for i, id := range ids {
				r.tasks[id] = &modelTask{batch: b.ID, pool: pool, device: r.devices[i], state: store.Pending}
			}
		}
	}
	return r
}

func (r *modelRun) anyTask(rt *rapid.T) int64  { return rapid.SampledFrom(r.all).Draw(rt, "task") }
func (r *modelRun) anyBatch(rt *rapid.T) int64 { return rapid.SampledFrom(r.batches).Draw(rt, "batch") }

func (r *modelRun) anyPool(rt *rapid.T) string { return rapid.SampledFrom(r.pools).Draw(rt, "pool") }

func TestAnySequenceOfCallsKeepsTheLedgerRight(t *testing.T) {
	t.Parallel()
	l, runs := openSQLite(t), 0
	// The test checks the order of commits, and not durability in a power cut.
	l.exec("PRAGMA synchronous = OFF")
	rapid.Check(t, func(rt *rapid.T) {
		l.reapAll() // End everything that the previous run left behind.
		_, err := l.EndCancelled(t.Context(), 1000)
		l.must(err)
		_, err = l.Expire(t.Context(), 1000)
		l.must(err)
		l.waitedTooLong(1000)
		runs++
		rt.Repeat(rapid.StateMachineActions(newModelRun(l, runs)))
	})
}

func (r *modelRun) Claim(rt *rapid.T) {
	id := r.anyTask(rt)
	c := r.l.to(id, r.tasks[id].device, r.tasks[id].pool, rapid.IntRange(0, 4).Draw(rt, "slot"))
	if rapid.IntRange(0, 9).Draw(rt, "foreign") == 0 {
		c.Device, c.Pool = rapid.SampledFrom(r.devices).Draw(rt, "device"), r.anyPool(rt)
	}
	want := r.claim(c)
	outcomes, err := r.l.Claim(r.l.Context(), []store.Claim{c}, true)
	if err != nil || outcomes[0].Status != want {
		rt.Fatalf("claim %+v: %+v, %v; want %d", c, outcomes, err, want)
	}
	if want != granted {
		return
	}
	g := outcomes[0].Grant
	if g.Token <= r.last || g.Attempt != r.tasks[id].attempts+1 {
		rt.Fatalf("grant %+v after token %d and %d attempts", g, r.last, r.tasks[id].attempts)
	}
	r.granted(g)
	if held := len(r.holders[g.Pool]); held > r.capacity[g.Pool] {
		rt.Fatalf("%d held in %s at capacity %d", held, g.Pool, r.capacity[g.Pool])
	}
}

func (r *modelRun) Result(rt *rapid.T) {
	task := r.tasks[r.anyTask(rt)]
	grants := task.old
	if task.grant != nil {
		grants = append(slices.Clip(grants), *task.grant)
	}
	if len(grants) == 0 {
		rt.Skip("never granted")
	}
	g := rapid.SampledFrom(grants).Draw(rt, "grant")
	cause := rapid.SampledFrom([]store.EndCause{store.BySuccess, store.ByFailure, store.ByReject, store.ByReturn}).Draw(rt, "cause")
	kind, state := r.result(g, cause)
	o := r.l.RecordResults(r.l.Context(), []store.Result{{Device: g.Device, Task: g.Task, Token: g.Token, Cause: cause}}, settle)[0]
	if o.Err != nil || o.Kind != kind || o.State != state || (o.Ended != nil) != (kind == store.ResultRecorded) {
		rt.Fatalf("%s of %+v: %+v, want %s and %s", cause, g, o, kind, state)
	}
}

func (r *modelRun) Reap(rt *rapid.T) {
	r.l.age(r.anyPool(rt), 2*time.Hour)
	now, err := r.l.Clock(r.l.Context())
	r.l.must(err)
	reaped, err := r.l.Reap(r.l.Context(), r.l.endedBy(now), rapid.IntRange(1, 3).Draw(rt, "limit"), settle)
	if err != nil {
		rt.Fatal(err)
	}
	for _, lapsed := range reaped {
		if task := r.tasks[lapsed.Grant.Task]; task.grant == nil || task.grant.Token != lapsed.Grant.Token {
			rt.Fatalf("reaped %+v, which is not held", lapsed.Grant)
		}
		if state := r.end(lapsed.Grant.Task, store.ByLapse); state != lapsed.State {
			rt.Fatalf("reaped to %s, want %s", lapsed.State, state)
		}
	}
}

func (r *modelRun) Cancel(rt *rapid.T) {
	id := r.anyTask(rt)
	task := r.tasks[id]
	got, err := r.l.CancelTask(r.l.Context(), "op", id)
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
}

func (r *modelRun) Pause(rt *rapid.T) {
	id := r.anyBatch(rt)
	b, err := r.l.PauseBatch(r.l.Context(), "op", id, "why not")
	if r.paused[id] = r.paused[id] || !r.cancelled[id]; err != nil || b.Paused != r.paused[id] {
		rt.Fatalf("paused %t, %v; want %t", b.Paused, err, r.paused[id])
	}
}

func (r *modelRun) Resume(rt *rapid.T) {
	id := r.anyBatch(rt)
	r.paused[id] = false
	if b, err := r.l.ResumeBatch(r.l.Context(), "op", id); err != nil || b.Paused {
		rt.Fatalf("paused %t, %v", b.Paused, err)
	}
}

func (r *modelRun) CancelBatch(rt *rapid.T) {
	id := r.anyBatch(rt)
	if rapid.IntRange(0, 4).Draw(rt, "seldom") != 0 {
		rt.Skip("too many would leave nothing to do")
	}
	if b, err := r.l.CancelBatch(r.l.Context(), "op", id); err != nil || b.CancelledAt == nil {
		rt.Fatalf("%+v, %v", b, err)
	}
	r.cancelled[id] = true
	for _, task := range r.tasks {
		if task.batch == id && task.grant != nil {
			task.grant.CancelWhy = "cancelled"
		}
	}
}

func (r *modelRun) EndCancelled(rt *rapid.T) {
	want := 0
	for _, task := range r.tasks {
		if r.cancelled[task.batch] && task.state == store.Pending && task.grant == nil {
			task.state = store.Cancelled
			want++
		}
	}
	if n, err := r.l.EndCancelled(r.l.Context(), 1000); err != nil || n != want {
		rt.Fatalf("ended %d, %v; want %d", n, err, want)
	}
}

// Time sets the own begin and end of a waiting task.
func (r *modelRun) Time(rt *rapid.T) {
	id := r.anyTask(rt)
	task := r.tasks[id]
	if task.state != store.Pending || task.grant != nil {
		rt.Skip("it does not wait")
	}
	task.early, task.late = rapid.Bool().Draw(rt, "early"), rapid.IntRange(0, 3).Draw(rt, "late") == 0
	hours := map[bool]int64{true: 2, false: -2}
	r.l.exec(`UPDATE tasks SET not_before = {now} + $2 * {ms}, retry_at = {now} + $2 * {ms}, not_after = {now} + $3 * {ms} WHERE id = $1`,
		id, hours[task.early]*3600_000, hours[!task.late]*3600_000)
}

// Hurry sets or removes that the tasks of a batch have waited longer than its max_wait.
func (r *modelRun) Hurry(rt *rapid.T) {
	id := r.anyBatch(rt)
	r.hurried[id] = rapid.Bool().Draw(rt, "hurried")
	r.l.exec(`UPDATE batches SET max_wait_ms = 3600000, wait_until = CASE WHEN $2 THEN {now} - 1000 * {ms} END WHERE id = $1`, id, r.hurried[id])
}

func (r *modelRun) Expire(rt *rapid.T) {
	want := 0
	for _, task := range r.tasks {
		if task.state == store.Pending && task.grant == nil && r.over(task) {
			task.state = store.Expired
			want++
		}
	}
	n, err := r.l.Expire(r.l.Context(), 1000)
	r.l.must(err)
	if n += r.l.waitedTooLong(rapid.IntRange(1, 3).Draw(rt, "looked")); n != want {
		rt.Fatalf("expired %d, want %d", n, want)
	}
}

func (r *modelRun) Fold(rt *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(rt, "limit")
	if n, aborted, err := r.l.Fold(r.l.Context(), limit); err != nil || n > limit || len(aborted) > 0 {
		rt.Fatalf("folded %d, aborted %v, %v", n, aborted, err)
	}
}

func (r *modelRun) Resize(rt *rapid.T) {
	pool := r.anyPool(rt)
	r.capacity[pool] = r.l.pool(pool, rapid.IntRange(0, 6).Draw(rt, "capacity")).Capacity
}

// Check compares the ledger with the model. rapid calls it after each call.
func (r *modelRun) Check(rt *rapid.T) {
	r.check(rt, r.l)
	r.checkCounts(rt, r.l, r.batches)
}

// check compares the stored tasks and grants with the model.
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
	list, err := l.Batches(l.Context(), store.BatchFilter{}, slices.Max(batches)+1, len(batches))
	l.must(err)
	for _, b := range list {
		if !maps.Equal(b.Counts, want[b.ID]) {
			rt.Fatalf("batch %d has %v, want %v", b.ID, b.Counts, want[b.ID])
		}
	}
}
