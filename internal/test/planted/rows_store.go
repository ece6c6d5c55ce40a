package main

// storeMistakes returns the planted mistakes in the ledger: in its SQL, its transactions and its unique keys.
func storeMistakes() []Mistake {
	ledger := []string{"store", "dispatcher"}
	return []Mistake{
		{
			Package: "migrations", Func: "postgres/00001_ledger.sql",
			Old: `UNIQUE (pool, slot),`, New: ``,
			Breaks: "Postgres lets two grants of one slot commit", Tests: ledger,
		},
		{
			Package: "migrations", Func: "sqlite/00001_ledger.sql",
			Old: `UNIQUE (pool, slot), UNIQUE (device)`, New: `UNIQUE (pool, slot)`,
			Breaks: "SQLite lets a device hold two grants", Tests: ledger,
		},
		{
			Package: "migrations", Func: "postgres/00001_ledger.sql",
			Old: `9007199254740991 CACHE 1;`, New: `9007199254740991 CACHE 20;`,
			Breaks: "a newer grant of a slot gets a lower fencing token", Tests: ledger,
		},
		{
			Package: "store", Func: "session.insertGrants",
			Old: `slotFitsSQL`, New: `"TRUE"`,
			Breaks: "a claim is granted on a slot beyond a capacity that was lowered", Tests: ledger,
		},
		{
			Package: "store", Func: "isEligibleSQL",
			Old: `d.blocked IS NOT TRUE AND`, New: ``,
			Breaks: "a claim of a blocked device is granted", Tests: ledger,
		},
		{
			Package: "store", Func: "isStartableForSQL",
			Old: `poolMayGrantSQL`, New: `"TRUE"`,
			Breaks: "a pool grants slots after a restore, while leases that the ledger lost may be in force", Tests: ledger,
		},
		{
			Package: "store", Func: "session.admitCallers",
			Old: `*r.Bound - r.Held`, New: `*r.Bound`,
			Breaks: "callers hold more slots of a pool than its bound for callers", Tests: ledger,
		},
		{
			Package: "store", Func: "grants.Redeliver",
			Old: `redelivered = redelivered + 1`, New: `redelivered = redelivered + 1, token = {token}`,
			Breaks: "a grant that is delivered again has a new token", Tests: ledger,
		},
		{
			Package: "store", Func: "session.extendLeases",
			Old: `longestLease`, New: `renewedLengthSQL`,
			Breaks: "a shorter renewal makes the clock guard forget the longer lease that the holder was promised", Tests: ledger,
		},
		{
			Package: "store", Func: "session.extendLeases",
			Old: `shouldRenewSQL, rowsToJSONArray(rows))`, New: `"reported.n >= 0", rowsToJSONArray(rows))`,
			Breaks: "a renewal that meets another renewal or a cancel shortens the lease or extends a cancelled one", Tests: ledger,
		},
		{
			Package: "store", Func: "session.handleResult",
			Old: `grant.Token == result.Token && `, New: ``,
			Breaks: "a result under an old token ends the newer grant of its task", Tests: ledger,
		},
		{
			Package: "store", Func: "session.recordLateResult",
			Old: `state != TimedOut`, New: `state != TimedOut && state != Dispatched`,
			Breaks: "a late success ends a task that is granted anew", Tests: ledger,
		},
		{
			Package: "store", Func: "grants.recordResultsInOneTx",
			Old: `for i := range outcomes {`, New: `for i := range endings {`,
			Breaks: "a result is acknowledged without being recorded if the outcome of the COMMIT beside it is unknown", Tests: ledger,
		},
		{
			Package: "store", Func: "session.lockLapsedGrants",
			Old: `g.LeaseUntil.Before(cutoffs[g.LongestLease])`, New: `!cutoffs[g.LongestLease].IsZero()`,
			Breaks: "the reaper ends a grant that was renewed after the reaper found it", Tests: ledger,
		},
		{
			Package: "store", Func: "grants.EndedLeases",
			Old:    `a.lease FROM {names} JOIN attempts a ON a.task = names.n AND a.lease = names.name`,
			New:    `names.name FROM {names} JOIN attempts a ON a.task = names.n`,
			Breaks: "reconciliation frees a slot that is being claimed, because an earlier attempt of its task ended", Tests: ledger,
		},
		{
			Package: "store", Func: "batches.changeBatch",
			Old: `if err := tx.lockNameExclusively(ctx, pool); err != nil { return err }`, New: `_ = pool`,
			Breaks: "a task is granted after the answer that its batch is cancelled or paused", Tests: ledger,
		},
		{
			Package: "store", Func: "session.lockOldBatch",
			Old: `AS open) = 0`, New: `AS open) >= 0`,
			Breaks: "retention deletes tasks of a batch that has an open task", Tests: ledger,
		},
		{
			Package: "dispatcher/upkeep", Func: "Keeper.SealEvents",
			Old: `m.counted, eventsPerSeal`, New: `m.position.Last, eventsPerSeal`,
			Breaks: "a block is sealed while a transaction can still add an event to it, so the log looks changed",
		},
		{
			Package: "store", Func: "session.checkSeals",
			Old: `seal.Events+1`, New: `seal.Events`,
			Breaks: "an event that is inserted before the first block is not found", Tests: ledger,
		},
		{
			Package: "store", Func: "Event.appendAuditLine",
			Old: `e.Task, e.Token`, New: `e.Task`,
			Breaks: "a changed fencing token in the log of events is not found", Tests: ledger,
		},
		{
			Package: "store", Func: "events.deleteOldEvents",
			Old: `WHERE last < $1`, New: `WHERE last <= $1`,
			Breaks: "after retention, the chain of seals has no start", Tests: ledger,
		},
		{
			Package: "store", Func: "batches.Fold",
			Old:    `if mine, err := queryOne(ctx, tx, singleColumn[bool], s.tryFold); err != nil || !mine {`,
			New:    `if _, err := queryOne(ctx, tx, singleColumn[bool], s.tryFold); err != nil {`,
			Breaks: "two replicas fold the same changes, and the counts of a batch are wrong", Tests: ledger,
		},
		{
			Package: "store", Func: "session.readAnswer",
			Old: `answered_at > {now}`, New: `answered_at < {now}`,
			Breaks: "a request with an idempotency key takes effect again when it is repeated", Tests: []string{"store", "operators/api"},
		},
		{
			Package: "store", Func: "news.ForEachOpenDevice",
			Old: `(pool, device) > ($1, $2)`, New: `pool >= $1 AND device > $2`,
			Breaks: "the second page of open tasks leaves out devices, so they get no mark", Tests: ledger,
		},
		{
			Package: "store", Func: "session.retryTasks",
			Old: `s.pendingNews.addDevices(devices...)`, New: ``,
			Breaks: "a retried task sets no mark, and its device is told that it has nothing to do", Tests: ledger,
		},
		{
			Package: "store", Func: "session.addNews",
			Old:    `if s.lockNews != "" { if _, err := s.exec(ctx, s.lockNews); err != nil { return fmt.Errorf("waiting for other writers of news: %w", err) } }`,
			New:    ``,
			Breaks: "news that commit after later news are never followed, and their devices get no mark", Tests: ledger,
		},
		{
			Package: "store", Func: "session.cancelTasks",
			Old: `s.recordTaskEvents(ctx, "task.cancel_asked", actor, asked), `, New: ``,
			Breaks: "the log does not say that an operator asked a running task to stop", Tests: []string{"store", "operators/api"},
		},
		{
			Package: "store", Func: "session.deleteDevices",
			Old: `device IN (SELECT name FROM {names})`, New: `device IN (SELECT name FROM {names}) AND expires_at <= {now}`,
			Breaks: "a token of a deleted device is still accepted", Tests: ledger,
		},
	}
}
