package store_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// ledgerModel is a plain model of the ledger, which computes the expected state after any sequence of calls.
type ledgerModel struct {
	capacity  map[string]int
	tasks     map[int64]*modelTask
	holders   map[string]map[int]int64 // holders: task id by pool and slot
	endCauses map[int64]store.EndCause // causes of ended grants by token
	lastToken int64                    // the newest token

	paused, cancelled, waitExceeded map[int64]bool // each by batch id
}

type modelTask struct {
	batch        int64
	pool, device string
	state        store.TaskState
	attempts     int
	grant        *store.Grant
	endedGrants  []store.Grant

	notBegun, pastEnd, started bool
}

// mustNotStart reports whether a waiting task must not start any more, because it is past its not_after or has waited longer than max_wait.
func (m *ledgerModel) mustNotStart(task *modelTask) bool {
	return task.pastEnd || m.waitExceeded[task.batch] && !task.started && !task.notBegun
}

const modelAttempts = 3

func (m *ledgerModel) isBusy(device string) bool {
	for _, task := range m.tasks {
		if task.device == device && task.grant != nil {
			return true
		}
	}
	return false
}

// claimStatus returns the status that the ledger should return for this claim.
func (m *ledgerModel) claimStatus(c store.Claim) store.ClaimStatus {
	capacity, known := m.capacity[c.Pool]
	if !known {
		return claimLost
	}
	above := 0
	for slot := range m.holders[c.Pool] {
		if slot > c.Slot {
			above++
		}
	}
	if holder, taken := m.holders[c.Pool][c.Slot]; taken && holder != c.Task || c.Slot+1+above > capacity {
		return claimConflict
	}
	task := m.tasks[c.Task]
	if task == nil || task.pool != c.Pool || task.device != c.Device || task.state != store.Pending || task.grant != nil || m.isBusy(c.Device) ||
		m.paused[task.batch] || m.cancelled[task.batch] || task.notBegun || m.mustNotStart(task) {
		return claimLost
	}
	return claimGranted
}

func (m *ledgerModel) recordGrant(g store.Grant) {
	m.tasks[g.Task].grant = &g
	if m.holders[g.Pool] == nil {
		m.holders[g.Pool] = map[int]int64{}
	}
	m.holders[g.Pool][g.Slot] = g.Task
	m.lastToken = g.Token
}

func (m *ledgerModel) endGrant(id int64, cause store.EndCause) store.TaskState {
	task := m.tasks[id]
	s := settleEnding(store.EndedGrantFacts{Cause: cause, Attempts: task.attempts, MaxAttempts: modelAttempts, CancelWhy: task.grant.CancelWhy})
	task.state = s.State
	if s.Counted {
		task.attempts++
	}
	task.started = true
	m.endCauses[task.grant.Token] = cause
	task.endedGrants = append(task.endedGrants, *task.grant)
	delete(m.holders[task.pool], task.grant.Slot)
	task.grant = nil
	return s.State
}

// applyResult applies a result for the grant g to the model. g may have ended. applyResult returns the kind of the result and the state of the
// task, both as the ledger must return them.
func (m *ledgerModel) applyResult(g store.Grant, cause store.EndCause) (store.ResultKind, store.TaskState) {
	task := m.tasks[g.Task]
	if task.grant != nil && task.grant.Token == g.Token {
		return store.ResultRecorded, m.endGrant(g.Task, cause)
	}
	state := task.state
	if task.grant != nil {
		state = store.Dispatched
	}
	if m.endCauses[g.Token] != store.ByLapse {
		return store.ResultDuplicate, state
	}
	if cause == store.BySuccess && (state == store.Pending || state == store.TimedOut) {
		task.state, state = store.Succeeded, store.Succeeded
	}
	return store.ResultLate, state
}

// modelRun makes one random sequence of calls to the ledger and to its model. It has its own devices, pools and batches.
type modelRun struct {
	*ledgerModel
	ledger           *ledger
	devices, pools   []string
	taskIDs, batches []int64
}

func newModelRun(l *ledger, number int) *modelRun {
	r := &modelRun{ledger: l, ledgerModel: &ledgerModel{
		capacity: map[string]int{}, tasks: map[int64]*modelTask{}, holders: map[string]map[int]int64{}, endCauses: map[int64]store.EndCause{},
		paused: map[int64]bool{}, cancelled: map[int64]bool{}, waitExceeded: map[int64]bool{},
	}}
	for _, name := range []string{"a", "b", "c", "d"} {
		r.devices = append(r.devices, fmt.Sprint(name, number))
	}
	for _, name := range []string{"p", "q"} {
		pool := fmt.Sprint(name, number)
		r.pools = append(r.pools, pool)
		r.capacity[pool] = l.putPool(pool, 3).Capacity
		for range 2 {
			b, ids := l.queueBatch(store.Batch{Pool: pool, MaxAttempts: modelAttempts}, r.devices...)
			r.taskIDs, r.batches = append(r.taskIDs, ids...), append(r.batches, b.ID)
			for i, id := range ids {
				r.tasks[id] = &modelTask{batch: b.ID, pool: pool, device: r.devices[i], state: store.Pending}
			}
		}
	}
	return r
}

func (r *modelRun) drawTask(rt *rapid.T) int64 { return rapid.SampledFrom(r.taskIDs).Draw(rt, "task") }

func (r *modelRun) drawBatch(rt *rapid.T) int64 {
	return rapid.SampledFrom(r.batches).Draw(rt, "batch")
}

func (r *modelRun) drawPool(rt *rapid.T) string { return rapid.SampledFrom(r.pools).Draw(rt, "pool") }

func TestAnySequenceOfCallsKeepsTheLedgerRight(t *testing.T) {
	t.Parallel()
	l, runs := openSQLite(t), 0
	// The test checks the order of commits, and needs no protection against a power cut. So syncing to disk is turned off.
	l.exec("PRAGMA synchronous = OFF")
	rapid.Check(t, func(rt *rapid.T) {
		l.reapAll() // End everything that the previous run left behind.
		_, err := l.EndCancelled(t.Context(), 1000)
		l.must(err)
		_, err = l.Expire(t.Context(), 1000)
		l.must(err)
		l.expireAllWaited(1000)
		runs++
		rt.Repeat(rapid.StateMachineActions(newModelRun(l, runs)))
	})
}

func (r *modelRun) Claim(rt *rapid.T) {
	id := r.drawTask(rt)
	c := r.ledger.newClaim(id, r.tasks[id].device, r.tasks[id].pool, rapid.IntRange(0, 4).Draw(rt, "slot"))
	if rapid.IntRange(0, 9).Draw(rt, "foreign") == 0 {
		c.Device, c.Pool = rapid.SampledFrom(r.devices).Draw(rt, "device"), r.drawPool(rt)
	}
	want := r.claimStatus(c)
	outcomes, err := r.ledger.Claim(r.ledger.Context(), []store.Claim{c}, true)
	if err != nil || outcomes[0].Status != want {
		rt.Fatalf("claim %+v: %+v, %v; want %d", c, outcomes, err, want)
	}
	if want != claimGranted {
		return
	}
	g := outcomes[0].Grant
	if g.Token <= r.lastToken || g.Attempt != r.tasks[id].attempts+1 {
		rt.Fatalf("grant %+v after token %d and %d attempts", g, r.lastToken, r.tasks[id].attempts)
	}
	r.recordGrant(g)
	if held := len(r.holders[g.Pool]); held > r.capacity[g.Pool] {
		rt.Fatalf("%d held in %s at capacity %d", held, g.Pool, r.capacity[g.Pool])
	}
}

func (r *modelRun) Result(rt *rapid.T) {
	task := r.tasks[r.drawTask(rt)]
	grants := task.endedGrants
	if task.grant != nil {
		grants = append(slices.Clip(grants), *task.grant)
	}
	if len(grants) == 0 {
		rt.Skip("never granted")
	}
	g := rapid.SampledFrom(grants).Draw(rt, "grant")
	cause := rapid.SampledFrom([]store.EndCause{store.BySuccess, store.ByFailure, store.ByReject, store.ByReturn}).Draw(rt, "cause")
	kind, state := r.applyResult(g, cause)
	o := r.ledger.RecordResults(r.ledger.Context(), []store.Result{{Device: g.Device, Task: g.Task, Token: g.Token, Cause: cause}}, settleEnding)[0]
	if o.Err != nil || o.Kind != kind || o.State != state || (o.Ended != nil) != (kind == store.ResultRecorded) {
		rt.Fatalf("%s of %+v: %+v, want %s and %s", cause, g, o, kind, state)
	}
}

func (r *modelRun) Reap(rt *rapid.T) {
	r.ledger.ageGrants(r.drawPool(rt), 2*time.Hour)
	now, err := r.ledger.Clock(r.ledger.Context())
	r.ledger.must(err)
	reaped, err := r.ledger.Reap(r.ledger.Context(), r.ledger.lapsesAt(now), rapid.IntRange(1, 3).Draw(rt, "limit"), settleEnding)
	must.Succeed(rt, err)
	for _, lapsed := range reaped {
		if task := r.tasks[lapsed.Grant.Task]; task.grant == nil || task.grant.Token != lapsed.Grant.Token {
			rt.Fatalf("reaped %+v, which is not held", lapsed.Grant)
		}
		if state := r.endGrant(lapsed.Grant.Task, store.ByLapse); state != lapsed.State {
			rt.Fatalf("reaped to %s, want %s", lapsed.State, state)
		}
	}
}

func (r *modelRun) Cancel(rt *rapid.T) {
	id := r.drawTask(rt)
	task := r.tasks[id]
	got, err := r.ledger.CancelTask(r.ledger.Context(), "op", id)
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
	id := r.drawBatch(rt)
	b, err := r.ledger.PauseBatch(r.ledger.Context(), "op", id, "why not")
	if r.paused[id] = r.paused[id] || !r.cancelled[id]; err != nil || b.Paused != r.paused[id] {
		rt.Fatalf("paused %t, %v; want %t", b.Paused, err, r.paused[id])
	}
}

func (r *modelRun) Resume(rt *rapid.T) {
	id := r.drawBatch(rt)
	r.paused[id] = false
	if b, err := r.ledger.ResumeBatch(r.ledger.Context(), "op", id); err != nil || b.Paused {
		rt.Fatalf("paused %t, %v", b.Paused, err)
	}
}

func (r *modelRun) CancelBatch(rt *rapid.T) {
	id := r.drawBatch(rt)
	if rapid.IntRange(0, 4).Draw(rt, "seldom") != 0 {
		rt.Skip("too many would leave nothing to do")
	}
	if b, err := r.ledger.CancelBatch(r.ledger.Context(), "op", id); err != nil || b.CancelledAt == nil {
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
	if n, err := r.ledger.EndCancelled(r.ledger.Context(), 1000); err != nil || n != want {
		rt.Fatalf("ended %d, %v; want %d", n, err, want)
	}
}

// SetOwnTimes sets the times at which a waiting task may begin and must end (its own not_before and not_after).
func (r *modelRun) SetOwnTimes(rt *rapid.T) {
	id := r.drawTask(rt)
	task := r.tasks[id]
	if task.state != store.Pending || task.grant != nil {
		rt.Skip("it does not wait")
	}
	task.notBegun, task.pastEnd = rapid.Bool().Draw(rt, "early"), rapid.IntRange(0, 3).Draw(rt, "late") == 0
	hours := map[bool]int64{true: 2, false: -2}
	r.ledger.exec(`UPDATE tasks SET not_before = {now} + $2 * {ms}, retry_at = {now} + $2 * {ms}, not_after = {now} + $3 * {ms} WHERE id = $1`,
		id, hours[task.notBegun]*3600_000, hours[!task.pastEnd]*3600_000)
}

// SetWaitExceeded draws whether the tasks of a batch have waited longer than its max_wait.
func (r *modelRun) SetWaitExceeded(rt *rapid.T) {
	id := r.drawBatch(rt)
	r.waitExceeded[id] = rapid.Bool().Draw(rt, "hurried")
	r.ledger.exec(`UPDATE batches SET max_wait_ms = 3600000, wait_until = CASE WHEN $2 THEN {now} - 1000 * {ms} END WHERE id = $1`, id, r.waitExceeded[id])
}

func (r *modelRun) Expire(rt *rapid.T) {
	want := 0
	for _, task := range r.tasks {
		if task.state == store.Pending && task.grant == nil && r.mustNotStart(task) {
			task.state = store.Expired
			want++
		}
	}
	n, err := r.ledger.Expire(r.ledger.Context(), 1000)
	r.ledger.must(err)
	if n += r.ledger.expireAllWaited(rapid.IntRange(1, 3).Draw(rt, "looked")); n != want {
		rt.Fatalf("expired %d, want %d", n, want)
	}
}

func (r *modelRun) Fold(rt *rapid.T) {
	limit := rapid.IntRange(1, 4).Draw(rt, "limit")
	if n, aborted, err := r.ledger.Fold(r.ledger.Context(), limit); err != nil || n > limit || len(aborted) > 0 {
		rt.Fatalf("folded %d, aborted %v, %v", n, aborted, err)
	}
}

func (r *modelRun) Resize(rt *rapid.T) {
	pool := r.drawPool(rt)
	r.capacity[pool] = r.ledger.putPool(pool, rapid.IntRange(0, 6).Draw(rt, "capacity")).Capacity
}

// Check compares the ledger with the model. The library rapid calls it after each random call.
func (r *modelRun) Check(rt *rapid.T) {
	r.compareTasks(rt, r.ledger)
	r.compareCounts(rt, r.ledger, r.batches)
}

// compareTasks compares the stored tasks and grants with the model.
func (m *ledgerModel) compareTasks(rt *rapid.T, l *ledger) {
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

func (m *ledgerModel) compareCounts(rt *rapid.T, l *ledger, batches []int64) {
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
