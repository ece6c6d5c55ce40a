package store

import (
	"context"
	"fmt"
	"slices"
)

type claimRow struct {
	N      int    `json:"n"`
	Task   int64  `json:"task"`
	Device string `json:"device"`
	Pool   string `json:"pool"`
	Slot   int    `json:"slot"`
	Lease  string `json:"lease"`
}

// fits is the condition that a claim's slot lies below the pool's slot limit:
// the slots up to it and the grants above it make no more than the capacity. They
// are counted only while there are grants beyond the capacity, after it was
// lowered: else there is a slot for each of them.
// So lowering a capacity revokes nobody, and admits nobody before there is
// room. New grants only ever appear below the limit and old ones above it only
// go, so a count that is older than the insert can only be too strict, as long
// as the capacity itself stands still: that is what the pool's lock is for.
const fits = `claims.slot >= 0 AND claims.slot < p.capacity AND (
	NOT EXISTS (SELECT 1 FROM grants beyond WHERE beyond.pool = p.name AND beyond.slot >= p.capacity) OR claims.slot + 1 +
	(SELECT count(*) FROM grants above WHERE above.pool = p.name AND above.slot > claims.slot) <= p.capacity)`

// leaseOfTask is how long a grant of task t of batch b in pool p lasts without a renewal, in milliseconds.
const leaseOfTask = `coalesce(t.lease_ms, ` + leaseOfBatch + `)`

// leaseOfBatch is leaseOfTask for a task of batch b in pool p without a length of its own.
const leaseOfBatch = `CASE WHEN b.lease_ms > 0 THEN b.lease_ms ELSE p.lease_ms END`

// Claim grants tasks on slots, each or not, all in one transaction; one outcome
// per claim, in their order. The unique keys decide, not what was read before.
// While a pool is being resized its claims wait if they may; else they are ClaimLocked,
// and hold up no others.
func (s grants) Claim(ctx context.Context, claims []Claim, wait bool) ([]ClaimOutcome, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	rows := make([]claimRow, len(claims))
	for i, c := range claims {
		rows[i] = claimRow{N: i, Task: c.Task, Device: c.Device, Pool: c.Pool, Slot: c.Slot, Lease: c.Lease}
	}
	outcomes, err := s.claimRows(ctx, rows, wait, failTaken)
	if taken(err) {
		outcomes, err = s.claimRows(ctx, rows, wait, skipTaken)
	}
	if err != nil {
		return nil, fmt.Errorf("claiming: %w", err)
	}
	return outcomes, nil
}

// An insert does this with a grant whose unique key is taken. Skipping it looks at
// each key once more, which costs by the old rows under it, and they are many
// beside a long transaction. Keys are seldom taken: Redis gave the slots.
const (
	failTaken = ``
	skipTaken = `ON CONFLICT DO NOTHING`
)

func (s grants) claimRows(ctx context.Context, rows []claimRow, wait bool, whenTaken string) (outcomes []ClaimOutcome, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		outcomes, err = tx.grants().claim(ctx, rows, wait, whenTaken)
		return err
	})
	return outcomes, err
}

func (s grantsIn) claim(ctx context.Context, all []claimRow, wait bool, whenTaken string) ([]ClaimOutcome, error) {
	outcomes := make([]ClaimOutcome, len(all))
	rows, err := s.lockPools(ctx, all, wait, outcomes)
	if err == nil {
		rows, err = s.admitCallers(ctx, rows, outcomes)
	}
	if err != nil || len(rows) == 0 {
		return outcomes, err
	}
	claims := input(rows)
	tasks, err := s.insertGrants(ctx, claims, whenTaken)
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

// lockPools keeps the capacities of the claims' pools from being changed, and returns the
// claims whose pool it has locked. A statement of its own: the snapshot of the next one is
// taken after a resize that was waited for.
func (s grantsIn) lockPools(ctx context.Context, all []claimRow, wait bool, outcomes []ClaimOutcome) ([]claimRow, error) {
	if s.lockShared == "" {
		return all, nil
	}
	text := s.tryShared
	if wait {
		text = s.lockShared
	}
	pools, err := collect(ctx, s.session, only[string], text, names(poolsOf(all)))
	if err != nil {
		return nil, fmt.Errorf("locking pools: %w", err)
	}
	rows := make([]claimRow, 0, len(all))
	for _, c := range all {
		if slices.Contains(pools, c.Pool) {
			rows = append(rows, c)
		} else {
			outcomes[c.N].Status = ClaimLocked
		}
	}
	return rows, nil
}

// poolsOf are in one order everywhere: so claims that contend wait for one another.
func poolsOf(claims []claimRow) []string {
	pools := make([]string, len(claims))
	for i, c := range claims {
		pools[i] = c.Pool
	}
	slices.Sort(pools)
	return slices.Compact(pools)
}

// insertGrants writes the grants that may be, and returns their tasks. Rows
// are locked and inserted in one order everywhere, the task before the grant,
// so that claims that contend wait for one another and never in a circle.
//
// IS NOT DISTINCT FROM is an equality that no index serves: with a plain one
// Postgres was seen to read all open tasks of the pool to find the claimed one. The state
// is hidden for the same reason.
func (s grantsIn) insertGrants(ctx context.Context, claims, whenTaken string) (tasks []int64, err error) {
	tasks, err = collect(ctx, s.session, only[int64], `
		WITH clock AS (SELECT {now} AS now)
		INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
		SELECT t.id, t.batch, t.pool, claims.slot, t.device, 0, claims.lease, t.attempts + 1, clock.now,
			clock.now + `+leaseOfTask+` * {ms},
			clock.now + CASE WHEN b.max_run_ms > 0 THEN b.max_run_ms ELSE `+fmt.Sprint(defaultMaxRun.Milliseconds())+` END * {ms},
			`+leaseOfTask+`
		FROM {claims}
			JOIN tasks t ON t.id = claims.task
			{batch of t}
			JOIN pools p ON p.name = claims.pool
			{device of t}
			CROSS JOIN clock
		WHERE t.state = `+hiddenPending+` AND `+eligible()+` AND `+fits+`
			AND t.device IS NOT DISTINCT FROM claims.device AND t.pool IS NOT DISTINCT FROM claims.pool
		ORDER BY t.pool, claims.slot, t.id
		{skip t}
		`+whenTaken+`
		RETURNING task`, claims)
	if err != nil {
		return nil, fmt.Errorf("inserting grants: %w", err)
	}
	return tasks, nil
}

// fillGranted gives the inserted grants their tokens and reads them back.
func (s grantsIn) fillGranted(ctx context.Context, outcomes []ClaimOutcome, claims []claimRow, tasks []int64) error {
	inserted := map[int64]bool{}
	for _, task := range tasks {
		inserted[task] = true
	}
	claims = slices.DeleteFunc(slices.Clone(claims), func(c claimRow) bool { return !inserted[c.Task] })
	rows, err := s.giveTokens(ctx, input(claims))
	if err != nil {
		return fmt.Errorf("giving tokens: %w", err)
	}
	for _, r := range rows {
		// Once per task: a claim that is listed twice is granted once.
		if inserted[r.Task] {
			delete(inserted, r.Task)
			outcomes[r.n] = ClaimOutcome{Status: ClaimGranted, Grant: r.Grant}
		}
	}
	return nil
}

// numbered is a grant with the number of its claim.
type numbered struct {
	n int
	Grant
}

// giveTokens gives the inserted grants of claims their tokens, records and returns
// them. A lease id names its claim: two claims of one task differ in it.
//
// The token comes after the insert: now that the grant holds its slot and its
// task alone, whoever had them before has a token already, and whoever follows
// cannot have one yet. A token drawn with the insert could be older than that
// of a grant for which the insert had to wait.
func (s grantsIn) giveTokens(ctx context.Context, claims string) ([]numbered, error) {
	const (
		claimed = ` WHERE EXISTS (SELECT 1 FROM {claims} WHERE claims.task = g.task AND claims.lease = g.lease)`
		update  = `UPDATE grants AS g SET token = {token} FROM {claims} WHERE g.task = claims.task AND g.lease = claims.lease`
		record  = `INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
			SELECT g.granted_at, 'task.granted', g.device, g.pool, g.batch, g.task, g.device, g.token, 'slot=' || g.slot FROM {given} g`
		read = ` SELECT claims.n, ` + grantColumns + ` FROM {claims}
				JOIN {given} g ON g.task = claims.task AND g.lease = claims.lease
				JOIN tasks t ON t.id = g.task {batch of t}
			ORDER BY claims.n`
	)
	dest := func(r *numbered) []any { return append([]any{&r.n}, grantDest(&r.Grant)...) }
	if s.chains {
		return collect(ctx, s.session, dest, once("claims", `given AS (`+update+` RETURNING g.*), recorded AS (`+record+`)`+read), claims)
	}
	for _, text := range []string{update, record + claimed} {
		if _, err := s.exec(ctx, text, claims); err != nil {
			return nil, err
		}
	}
	return collect(ctx, s.session, dest, read, claims)
}

// markConflicts finds, among the claims not granted, those whose slot is not
// to be had.
func (s grantsIn) markConflicts(ctx context.Context, outcomes []ClaimOutcome, claims string) error {
	conflicts, err := collect(ctx, s.session, only[int], `
		SELECT claims.n FROM {claims} JOIN pools p ON p.name = claims.pool
		WHERE NOT (`+fits+`) OR EXISTS (
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
