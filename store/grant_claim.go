package store

import (
	"context"
	"fmt"
	"slices"
)

// claimRow is a claim in the form that a statement reads. N is the index of the claim.
type claimRow struct {
	N int `json:"n"`
	Claim
}

// slotFitsSQL is the condition that the capacity of the pool allows the slot of a claim. After a decrease of the capacity, grants on slots
// beyond the capacity stay in force. While such grants exist, slot + 1 plus the number of grants on higher slots must not exceed the
// capacity, so that no new grant is made before there is room. Without such grants, each slot below the capacity is allowed.
//
// Two transactions can count at the same time. New grants get only slots that this condition allows, and grants on higher slots only end.
// So an outdated count can only refuse too much, as long as the capacity does not change. The lock of the pool ensures that the capacity
// does not change.
const slotFitsSQL = `claims.slot >= 0 AND claims.slot < p.capacity AND (
	NOT EXISTS (SELECT 1 FROM grants beyond WHERE beyond.pool = p.name AND beyond.slot >= p.capacity) OR claims.slot + 1 +
	(SELECT count(*) FROM grants above WHERE above.pool = p.name AND above.slot > claims.slot) <= p.capacity)`

// taskLeaseMillis is the length, in milliseconds, of the lease of task t in batch b and pool p without a renewal.
const taskLeaseMillis = `coalesce(t.lease_ms, ` + batchLeaseMillis + `)`

// batchLeaseMillis is the length of the lease, in milliseconds, of a task of batch b and pool p that has no lease length of its own.
const batchLeaseMillis = `CASE WHEN b.lease_ms > 0 THEN b.lease_ms ELSE p.lease_ms END`

// Claim grants tasks on slots in one transaction; each claim succeeds or fails independently of the others. It returns one outcome per
// claim, in the order of claims. The unique keys of the ledger decide whether a slot is free, not an earlier reading. While a pool is being
// resized, its claims wait if the parameter wait is true. If wait is false, they get ClaimLocked and do not delay other claims.
func (s grants) Claim(ctx context.Context, claims []Claim, wait bool) (_ []ClaimOutcome, err error) {
	defer describe(&err, "claiming slots")
	if len(claims) == 0 {
		return nil, nil
	}
	rows := make([]claimRow, len(claims))
	for i, c := range claims {
		rows[i] = claimRow{i, c}
	}
	claim := func(onTakenSlot string) ([]ClaimOutcome, error) {
		return inTx(ctx, s.connection, func(tx session) ([]ClaimOutcome, error) {
			return tx.grants().claim(ctx, rows, wait, onTakenSlot)
		})
	}
	outcomes, err := claim(failTaken)
	if isUniqueViolation(err) {
		return claim(skipTaken)
	}
	return outcomes, err
}

// These constants end an INSERT of grants. They decide what happens if a unique key is taken: failTaken makes the INSERT fail, and
// skipTaken skips the row. skipTaken is slower, because ON CONFLICT DO NOTHING checks each key one more time and a long transaction may
// leave many dead rows under a key. A key is seldom taken, because Redis has chosen the slots. So the first INSERT uses failTaken, and only
// a second INSERT uses skipTaken.
const (
	failTaken = ``
	skipTaken = `ON CONFLICT DO NOTHING`
)

// claim makes the claims in requested and returns one outcome for each, in the same order. If waitForLock is true, it waits for locked
// pools; otherwise their claims get ClaimLocked. onTakenSlot is failTaken or skipTaken.
func (s grantsIn) claim(ctx context.Context, requested []claimRow, waitForLock bool, onTakenSlot string) ([]ClaimOutcome, error) {
	outcomes := make([]ClaimOutcome, len(requested))
	rows, err := s.lockPools(ctx, requested, waitForLock, outcomes)
	if err == nil {
		rows, err = s.admitCallers(ctx, rows, outcomes)
	}
	if err != nil || len(rows) == 0 {
		return outcomes, err
	}
	claims := toJSONInput(rows)
	tasks, err := s.insertGrants(ctx, claims, onTakenSlot)
	if err != nil {
		return nil, err
	}
	if len(tasks) > 0 {
		if err := s.fillGranted(ctx, outcomes, rows, tasks); err != nil {
			return nil, err
		}
	}
	if len(tasks) == len(rows) {
		return outcomes, nil
	}
	return outcomes, s.markConflicts(ctx, outcomes, claims)
}

// lockPools locks the pools of the claims against changes of their capacity, and returns the claims whose pools it has locked. If
// waitForLock is false, it skips pools that are locked and sets the outcomes of their claims. It must be a statement of its own: the lock
// may wait for a resize, and only a later statement reads the new capacity.
func (s grantsIn) lockPools(ctx context.Context, claims []claimRow, waitForLock bool, outcomes []ClaimOutcome) ([]claimRow, error) {
	if s.lockShared == "" {
		return claims, nil
	}
	text := s.tryShared
	if waitForLock {
		text = s.lockShared
	}
	pools, err := collect(ctx, s.session, singleColumn[string], text, namesInput(poolNames(claims)))
	if err != nil {
		return nil, fmt.Errorf("locking pools: %w", err)
	}
	rows := make([]claimRow, 0, len(claims))
	for _, c := range claims {
		if slices.Contains(pools, c.Pool) {
			rows = append(rows, c)
		} else {
			outcomes[c.N].Status = ClaimLocked
		}
	}
	return rows, nil
}

// poolNames returns the names of the claims' pools in ascending order, each once. All code locks pools in ascending order, so that
// concurrent claims cannot deadlock.
func poolNames(claims []claimRow) []string {
	pools := make([]string, len(claims))
	for i, c := range claims {
		pools[i] = c.Pool
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// insertGrants inserts a grant for each of claims (a JSON list) that is allowed, and returns the tasks of these grants. onTakenSlot is
// failTaken or skipTaken. Concurrent claims cannot deadlock, because each transaction locks and inserts rows in one order, and each task
// before its grant.
//
// The statement compares with IS NOT DISTINCT FROM, which cannot use an index. With = Postgres sometimes read all open tasks of the pool to
// find the claimed task. The value of the state is hidden from the planner for the same reason.
func (s grantsIn) insertGrants(ctx context.Context, claims, onTakenSlot string) (tasks []int64, err error) {
	defer describe(&err, "inserting grants")
	return collect(ctx, s.session, singleColumn[int64], `
		WITH clock AS (SELECT {now} AS now)
		INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT t.id, t.batch, t.pool, claims.slot, t.device, 0, claims.lease, t.attempts + 1, clock.now,
			clock.now + `+taskLeaseMillis+` * {ms},
			clock.now + CASE WHEN b.max_run_ms > 0 THEN b.max_run_ms ELSE `+fmt.Sprint(defaultMaxRun.Milliseconds())+` END * {ms},
			`+taskLeaseMillis+`
		FROM {claims}
			JOIN tasks t ON t.id = claims.task
			{batch of t}
			JOIN pools p ON p.name = claims.pool
			{device of t}
			CROSS JOIN clock
		WHERE t.state = `+hiddenPending+` AND `+isEligibleSQL()+` AND `+slotFitsSQL+`
			AND t.device IS NOT DISTINCT FROM claims.device AND t.pool IS NOT DISTINCT FROM claims.pool
		ORDER BY t.pool, claims.slot, t.id
		FOR UPDATE OF t SKIP LOCKED
		`+onTakenSlot+`
		RETURNING task`, claims)
}

// fillGranted gives the inserted grants of tasks their fencing tokens, and sets the outcome of each claim that was granted. outcomes has one
// element for each claim of the call, and the field N of a claim is its index there.
func (s grantsIn) fillGranted(ctx context.Context, outcomes []ClaimOutcome, claims []claimRow, tasks []int64) error {
	inserted := map[int64]bool{}
	for _, task := range tasks {
		inserted[task] = true
	}
	claims = slices.DeleteFunc(slices.Clone(claims), func(c claimRow) bool { return !inserted[c.Task] })
	rows, err := s.giveTokens(ctx, toJSONInput(claims))
	if err != nil {
		return fmt.Errorf("assigning fencing tokens: %w", err)
	}
	for _, r := range rows {
		// A task gets only one granted outcome: if a claim is listed twice, the second one is not granted.
		if inserted[r.Task] {
			delete(inserted, r.Task)
			outcomes[r.n] = ClaimOutcome{Status: ClaimGranted, Grant: r.Grant}
		}
	}
	return nil
}

// claimedGrant is a grant with the index of its claim.
type claimedGrant struct {
	n int
	Grant
}

// giveTokens gives the inserted grants of claims (a JSON list) their fencing tokens, records the events and returns the grants. It finds a
// grant by task and lease id, because two claims of one task differ in their lease ids.
//
// A token is drawn after the INSERT. At that point the grant holds the unique keys of its slot and task. So every earlier holder already
// has its token, and no later holder can have one yet. If the token were drawn with the INSERT, the INSERT could then wait for an earlier
// grant, and the token of the earlier grant could be the higher one.
func (s grantsIn) giveTokens(ctx context.Context, claims string) ([]claimedGrant, error) {
	const (
		claimed = ` WHERE EXISTS (SELECT 1 FROM {claims} WHERE claims.task = g.task AND claims.lease = g.lease)`
		update  = `UPDATE grants AS g SET token = {token} FROM {claims} WHERE g.task = claims.task AND g.lease = claims.lease`
		record  = `INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
			SELECT g.granted_at, 'task.granted', g.device, 'device', g.pool, g.batch, g.task, g.device, g.token, 'slot=' || g.slot FROM {given} g`
		read = ` SELECT claims.n, ` + grantColumns + ` FROM {claims}
				JOIN {given} g ON g.task = claims.task AND g.lease = claims.lease
				JOIN tasks t ON t.id = g.task {batch of t}
			ORDER BY claims.n`
	)
	dest := func(r *claimedGrant) []any { return append([]any{&r.n}, grantDest(&r.Grant)...) }
	if s.canChainWrites {
		return collect(ctx, s.session, dest, chainCTEs("claims", `given AS (`+update+` RETURNING g.*), recorded AS (`+record+`)`+read), claims)
	}
	for _, text := range []string{update, record + claimed} {
		if _, err := s.exec(ctx, text, claims); err != nil {
			return nil, err
		}
	}
	return collect(ctx, s.session, dest, read, claims)
}

// markConflicts sets ClaimConflict in outcomes for each claim in claims (a JSON list) that was not granted because its slot is taken or
// beyond the limit.
func (s grantsIn) markConflicts(ctx context.Context, outcomes []ClaimOutcome, claims string) error {
	conflicts, err := collect(ctx, s.session, singleColumn[int], `
		SELECT claims.n FROM {claims} JOIN pools p ON p.name = claims.pool
		WHERE NOT (`+slotFitsSQL+`) OR EXISTS (
			SELECT 1 FROM grants g WHERE g.pool = claims.pool AND g.slot = claims.slot AND g.task <> claims.task)`, claims)
	if err != nil {
		return fmt.Errorf("explaining claims: %w", err)
	}
	for _, n := range conflicts {
		if outcomes[n].Status == ClaimLost {
			outcomes[n].Status = ClaimConflict
		}
	}
	return nil
}
