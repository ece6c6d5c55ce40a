package store

import (
	"context"
	"fmt"
	"slices"
)

// claimRow is a claim as a statement reads it. N is its index in the list of claims.
type claimRow struct {
	N int `json:"n"`
	Claim
}

// slotFitsSQL is the condition that the capacity allows the slot of a claim. If the capacity was decreased, grants on slots beyond it stay in
// force. Each of these grants uses up a part of the capacity. So for a claim, slot + 1 plus the number of grants on higher slots must not
// exceed the capacity.
//
// Concurrent transactions may count at the same time. New grants get only slots that this condition allows, and grants on slots beyond the
// capacity can only end, so an outdated count can only refuse too much. The lock of the pool keeps the capacity unchanged.
const slotFitsSQL = `claims.slot >= 0 AND claims.slot < p.capacity AND (
	NOT EXISTS (SELECT 1 FROM grants beyond WHERE beyond.pool = p.name AND beyond.slot >= p.capacity) OR claims.slot + 1 +
	(SELECT count(*) FROM grants above WHERE above.pool = p.name AND above.slot > claims.slot) <= p.capacity)`

// taskLeaseMillis is the length in ms of the lease of task t in batch b and pool p, before a renewal.
const taskLeaseMillis = `coalesce(t.lease_ms, ` + batchLeaseMillis + `)`

// batchLeaseMillis is the lease length in ms of a task of batch b and pool p that has no lease length of its own.
const batchLeaseMillis = `CASE WHEN b.lease_ms > 0 THEN b.lease_ms ELSE p.lease_ms END`

// Claim grants tasks on slots in one transaction, independently of each other, and returns one outcome per claim, in their order. The
// unique keys decide whether a slot is free. While a pool is resized, the claims in this pool wait if waitForLock is true. Otherwise they get
// ClaimLocked.
func (s grants) Claim(ctx context.Context, claims []Claim, waitForLock bool) (_ []ClaimOutcome, err error) {
	defer wrapError(&err, "claiming slots")
	if len(claims) == 0 {
		return nil, nil
	}
	rows := make([]claimRow, len(claims))
	for i, c := range claims {
		rows[i] = claimRow{i, c}
	}
	claim := func(onTakenSlot string) ([]ClaimOutcome, error) {
		return inTx(ctx, s.connection, func(tx session) ([]ClaimOutcome, error) {
			return tx.claimGrants(ctx, rows, waitForLock, onTakenSlot)
		})
	}
	outcomes, err := claim(failTaken)
	if isUniqueViolation(err) {
		return claim(skipTaken)
	}
	return outcomes, err
}

// failTaken and skipTaken end an INSERT of grants. If a unique key is taken, an INSERT with failTaken fails, and an INSERT with skipTaken
// skips the row. skipTaken is slower, because it checks each key once more, among dead rows that a long transaction may leave. Redis chose
// the slots, so a key is seldom taken. Only a second INSERT uses skipTaken.
const (
	failTaken = ``
	skipTaken = `ON CONFLICT DO NOTHING`
)

// claimGrants makes the claims of the list requested, as Claim does. onTakenSlotSQL is failTaken or skipTaken.
func (s session) claimGrants(ctx context.Context, requested []claimRow, waitForLock bool, onTakenSlotSQL string) ([]ClaimOutcome, error) {
	outcomes := make([]ClaimOutcome, len(requested))
	rows, err := s.lockPools(ctx, requested, waitForLock, outcomes)
	if err == nil {
		rows, err = s.admitCallers(ctx, rows, outcomes)
	}
	if err != nil || len(rows) == 0 {
		return outcomes, err
	}
	claims := rowsToJSONArray(rows)
	tasks, err := s.insertGrants(ctx, claims, onTakenSlotSQL)
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

// lockPools locks the pools of the claims against changes of their capacity and returns the claims whose pools it has locked. If waitForLock is
// false and a pool is being resized, its claims get ClaimLocked in outcomes. The lock is a statement of its own, because only a later statement
// reads the capacity after a resize.
func (s session) lockPools(ctx context.Context, claims []claimRow, waitForLock bool, outcomes []ClaimOutcome) (lockable []claimRow, err error) {
	if s.lockShared == "" {
		return claims, nil
	}
	text := s.tryShared
	if waitForLock {
		text = s.lockShared
	}
	pools, err := collect(ctx, s, singleColumn[string], text, namesToJSONArray(poolNamesOfClaims(claims)))
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

// poolNamesOfClaims returns the distinct pools of the claims in ascending order. All claims lock pools in this order, so they cannot deadlock.
func poolNamesOfClaims(claims []claimRow) []string {
	pools := make([]string, len(claims))
	for i, c := range claims {
		pools[i] = c.Pool
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// insertGrants inserts a grant for each allowed claim in claimsJSON (a JSON list) and returns the tasks of the new grants. onTakenSlotSQL is
// failTaken or skipTaken. Concurrent claims cannot deadlock, because all of them lock and insert rows in one order, each task before its
// grant.
//
// IS NOT DISTINCT FROM prevents the use of an index on device or pool. With =, Postgres sometimes read all open tasks of the pool to find
// one. hiddenPending hides the state from the planner for the same reason.
func (s session) insertGrants(ctx context.Context, claimsJSON, onTakenSlotSQL string) (taskIDs []int64, err error) {
	defer wrapError(&err, "inserting grants")
	return collect(ctx, s, singleColumn[int64], `
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
		`+onTakenSlotSQL+`
		RETURNING task`, claimsJSON)
}

// fillGranted gives the inserted grants of taskIDs their fencing tokens, and sets the outcomes of their claims. outcomes is indexed by
// claimRow.N.
func (s session) fillGranted(ctx context.Context, outcomes []ClaimOutcome, claims []claimRow, taskIDs []int64) error {
	inserted := map[int64]bool{}
	for _, task := range taskIDs {
		inserted[task] = true
	}
	claims = slices.DeleteFunc(slices.Clone(claims), func(c claimRow) bool { return !inserted[c.Task] })
	rows, err := s.giveTokens(ctx, rowsToJSONArray(claims))
	if err != nil {
		return fmt.Errorf("assigning fencing tokens: %w", err)
	}
	for _, r := range rows {
		// A task gets only one granted outcome. So if a claim is listed twice, the second claim is not granted.
		if inserted[r.Task] {
			delete(inserted, r.Task)
			outcomes[r.n] = ClaimOutcome{Status: ClaimGranted, Grant: r.Grant}
		}
	}
	return nil
}

type claimedGrant struct {
	n int
	Grant
}

// giveTokens gives a fencing token to each inserted grant of claimsJSON (a JSON list), records the events and returns the grants. Claims of
// the same task have different lease ids.
//
// A token is drawn after the INSERT, when the grant holds the keys of its slot and task. So every earlier holder has its token already. If
// the token were drawn with the INSERT, the INSERT could wait for an earlier grant that then gets a higher token.
func (s session) giveTokens(ctx context.Context, claimsJSON string) ([]claimedGrant, error) {
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
	dest := func(r *claimedGrant) []any { return append([]any{&r.n}, grantScanDest(&r.Grant)...) }
	if s.canChainWrites {
		return collect(ctx, s, dest, withInputReadOnceSQL("claims", `given AS (`+update+` RETURNING g.*), recorded AS (`+record+`)`+read), claimsJSON)
	}
	for _, text := range []string{update, record + claimed} {
		if _, err := s.exec(ctx, text, claimsJSON); err != nil {
			return nil, err
		}
	}
	return collect(ctx, s, dest, read, claimsJSON)
}

// markConflicts sets ClaimConflict for each claim in claimsJSON (a JSON list) that was lost because its slot is taken or is beyond the
// capacity.
func (s session) markConflicts(ctx context.Context, outcomes []ClaimOutcome, claimsJSON string) error {
	conflicts, err := collect(ctx, s, singleColumn[int], `
		SELECT claims.n FROM {claims} JOIN pools p ON p.name = claims.pool
		WHERE NOT (`+slotFitsSQL+`) OR EXISTS (
			SELECT 1 FROM grants g WHERE g.pool = claims.pool AND g.slot = claims.slot AND g.task <> claims.task)`, claimsJSON)
	if err != nil {
		return fmt.Errorf("finding claims of taken slots: %w", err)
	}
	for _, n := range conflicts {
		if outcomes[n].Status == ClaimLost {
			outcomes[n].Status = ClaimConflict
		}
	}
	return nil
}
