package store

import (
	"context"
	"strings"
)

// eligible is the condition that a task may be granted now, but for its pool
// having a free slot. It is about tasks t, batches b, pools p and the device
// d, which may be NULL: devices are not registered before they report.
func eligible() string {
	return startable() + ` AND d.blocked IS NOT TRUE AND (t.retry_at IS NULL OR t.retry_at <= {now})`
}

// startable is what eligible says of batches b and pools p alone.
func startable() string {
	return `
	b.cancelled_at IS NULL AND b.paused IS FALSE AND p.paused IS FALSE AND p.deleted_at IS NULL
	AND (b.not_before IS NULL OR b.not_before <= {now})
	AND (b.not_after IS NULL OR b.not_after > {now})
	AND ` + windowOpen("b") + ` AND ` + windowOpen("p")
}

// candidateDest takes NULLs: the device may have no open task.
func candidateDest(c *Candidate) []any {
	return []any{
		opt(&c.Task), opt(&c.Batch), opt(&c.Pool), opt(&c.Priority), opt(&c.Weight),
		instant{&c.CreatedAt},
		instant{&c.NotBefore},
		instant{&c.RetryAt},
		opt(&c.Attempt),
		millis{&c.Lease},
		opt(&c.PoolPaused), opt(&c.BatchPaused), opt(&c.FinishInside),
		instant{&c.Window.From},
		instant{&c.Window.Until},
		instant{&c.PoolWindow.From},
		instant{&c.PoolWindow.Until},
		document{&c.PoolLimits},
		document{&c.Limits},
		document{&c.ProfileLimits},
		opt(&c.Kind),
		document{&c.Payload},
	}
}

// Views reads what concerns the reports of these devices: one moment for all,
// one view per device, in their order; a device that is named twice has the same
// one twice. The candidates of a device are the best open task of each batch:
// eligible before waiting ones, then by priority, then by age.
func (s grants) Views(ctx context.Context, devices []string) ([]View, error) {
	return s.read().grants().views(ctx, devices, 0)
}

// Registered reads what says who the devices are: Now, Device and Deleted of each view.
func (s grants) Registered(ctx context.Context, devices []string) ([]View, error) {
	return s.read().grants().registered(ctx, devices)
}

func (s grantsIn) registered(ctx context.Context, devices []string) ([]View, error) {
	unique, at := distinct(devices)
	rows, err := collect(ctx, s.session, func(r *reading) []any {
		return append([]any{&r.n, instant{&r.Now}, &r.Deleted}, deviceDest(&r.device)...)
	}, `
		SELECT w.n, {now}, `+gone("w")+`, `+deviceColumns+`
		FROM (SELECT * FROM {names}) AS w {device of w}`, names(unique))
	if err != nil {
		return nil, err
	}
	return viewsOf(rows, unique, at), nil
}

// gone is whether the device that a row names is not registered because it was deleted.
func gone(row string) string {
	return `CASE WHEN d.id IS NULL THEN EXISTS (SELECT 1 FROM deleted_devices gone WHERE gone.id = ` + row + `.name) ELSE FALSE END`
}

// reading is a row about a device.
type reading struct {
	n int
	View
	device Device
	grant  Grant
	open   Candidate
}

// viewsOf are the views of the devices, in their order.
func viewsOf(rows []reading, unique []string, at []int) []View {
	read := make([]View, len(unique))
	for i := range rows {
		r := &rows[i]
		v := &read[r.n]
		v.Now, v.Standstill, v.Deleted = r.Now, r.Standstill, r.Deleted
		if r.device.ID != "" && v.Device == nil {
			v.Device = &r.device
		}
		if r.grant.Task != 0 && v.Grant == nil {
			v.Grant = &r.grant
		}
		// A task that was named and is among the best ones has two rows, side by side.
		if n := len(v.Candidates); r.open.Task != 0 && (n == 0 || v.Candidates[n-1].Task != r.open.Task) {
			v.Candidates = append(v.Candidates, r.open)
		}
	}
	views := make([]View, len(at))
	for i := range views {
		views[i] = read[at[i]]
	}
	return views
}

// views reads the views of devices, with this task among the candidates if it
// is open, whatever is better; 0: no such task.
func (s grantsIn) views(ctx context.Context, devices []string, task int64) ([]View, error) {
	unique, at := distinct(devices)
	text, args := viewsText(), []any{names(unique)}
	if task != 0 {
		text, args = taskViewText(), append(args, task)
	}
	rows, err := collect(ctx, s.session, func(r *reading) []any {
		dest := []any{&r.n, instant{&r.Now}, instant{&r.Standstill}, &r.Deleted}
		dest = append(dest, deviceDest(&r.device)...)
		dest = append(dest, grantDest(&r.grant)...)
		return append(dest, candidateDest(&r.open)...)
	}, text, args...)
	if err != nil {
		return nil, err
	}
	return viewsOf(rows, unique, at), nil
}

// distinct are the texts, each once, and where each one is among them.
func distinct(texts []string) (unique []string, at []int) {
	first := make(map[string]int, len(texts))
	at = make([]int, len(texts))
	for i, text := range texts {
		n, known := first[text]
		if !known {
			n = len(unique)
			first[text], unique = n, append(unique, text)
		}
		at[i] = n
	}
	return unique, at
}

// shownTasks of a batch are its best one; with policies the best ones: what lets
// one of them wait may let another one start.
const shownTasks = `(o.rank = 1 OR o.rank <= 8 AND o.limited)`

// hiddenPending is a state that the planner does not know.
const hiddenPending = `(SELECT 'pending')`

// viewsText asks for the views of {names}.
func viewsText() string { return viewsOfTasks(bestTasks("{columns of best}"), shownTasks) }

// taskViewText asks for the view of one device, with the task $2 among its candidates.
func taskViewText() string {
	const named = ` UNION ALL SELECT {columns of best} FROM tasks t WHERE t.id = $2 AND t.device = w.name AND t.batch = w.batch AND t.state = 'pending'`
	return viewsOfTasks(bestTasks("{columns of best}")+named, `(`+shownTasks+` OR o.id = $2)`)
}

// bestTasks are those open tasks of a device w in a batch that may be its best ones, each
// group by the index, however many there are: with a priority of their own and with that
// of their batch, and of each those that were never tried, by priority, and those that are
// to be tried again, the one that is due first at the front.
func bestTasks(columns string) string {
	var groups []string
	for _, own := range []string{"TRUE", "FALSE"} {
		for _, tried := range []string{"IS NULL", "IS NOT NULL"} {
			groups = append(groups, `SELECT * FROM (
				SELECT `+columns+` FROM tasks t
				WHERE t.device = w.name AND t.batch * 1 = w.batch AND t.state = `+hiddenPending+` AND t.own_priority IS `+own+` AND t.retry_at `+tried+`
				ORDER BY t.retry_at NULLS FIRST, t.priority DESC, t.id LIMIT 9) AS few`)
		}
	}
	return strings.Join(groups, " UNION ALL ")
}

// viewsOfTasks leaps from batch to batch in the index of the open tasks of each device,
// and looks at the best ones of each. The one that the device holds is left out at the
// end: hence one more than is shown of each group. Each look-up is a query by itself, so
// that there is one plan, whatever the statistics say or do not say yet: Postgres plans
// these texts once, when all tables are empty. The index has batch * 1, which no other one
// has, and the state is hidden, so that the indexes of pending tasks alone cannot serve.
func viewsOfTasks(best, shown string) string {
	const (
		limited = `(p.limits IS NOT NULL OR b.limits IS NOT NULL OR w.limits IS NOT NULL)`
		next    = `(SELECT min(t.batch * 1) FROM tasks t WHERE t.device = w.name AND t.state = ` + hiddenPending
	)
	return `
		WITH RECURSIVE clock AS (SELECT clock.now, ` + standstill + ` AS standstill FROM (SELECT {now} AS now) AS clock),
		wanted AS (SELECT n, name,
			(SELECT p.limits FROM profiles p WHERE p.name = (SELECT own.profile FROM devices own WHERE own.id = names.name)) AS limits,
			(SELECT g.task FROM grants g WHERE g.device = names.name) AS held FROM {names}),
		leap(n, name, limits, held, batch) AS (
			SELECT w.n, w.name, w.limits, w.held, ` + next + `) FROM wanted w
			UNION ALL
			SELECT w.n, w.name, w.limits, w.held, ` + next + ` AND t.batch * 1 > w.batch) FROM leap w WHERE w.batch IS NOT NULL),
		open AS (
			SELECT w.n, t.id, b.id AS batch, b.pool, ` + taskPriority + ` AS priority, b.weight, b.created_at, b.not_before, t.retry_at, t.attempts + 1 AS attempt,
				CASE WHEN b.not_before IS NULL OR t.retry_at > b.not_before THEN t.retry_at ELSE b.not_before END AS eligible_at,
				CASE WHEN b.lease_ms > 0 THEN b.lease_ms ELSE p.lease_ms END AS lease_ms,
				p.paused AS pool_paused, b.paused AS batch_paused, b.finish_inside, b.opens_at, b.closes_at, p.opens_at AS pool_opens_at, p.closes_at AS pool_closes_at,
				p.limits AS pool_limits, b.limits, w.limits AS profile_limits,
				` + limited + ` AS limited,
				CASE WHEN ` + limited + ` THEN b.kind END AS kind,
				CASE WHEN ` + limited + ` THEN coalesce(t.payload, b.payload) END AS payload
			FROM leap w {batch of w} {pool of b} CROSS JOIN clock
				{best (}` + best + `{) t}
			WHERE b.cancelled_at IS NULL AND p.deleted_at IS NULL AND (b.not_after IS NULL OR b.not_after > clock.now)
				AND (w.held IS NULL OR t.id <> w.held)),
		ranked AS (
			SELECT open.*, row_number() OVER (PARTITION BY n, batch ORDER BY
				CASE WHEN eligible_at > clock.now THEN 1 ELSE 0 END, priority DESC, id) AS rank
			FROM open CROSS JOIN clock)
		SELECT w.n, clock.now, clock.standstill, ` + gone("w") + `,
			` + deviceColumns + `, ` + grantColumns + `,
			o.id, o.batch, o.pool, o.priority, o.weight, o.created_at, o.not_before, o.retry_at, o.attempt, o.lease_ms, o.pool_paused, o.batch_paused,
			o.finish_inside, o.opens_at, o.closes_at, o.pool_opens_at, o.pool_closes_at, o.pool_limits, o.limits, o.profile_limits, o.kind, o.payload
		FROM wanted w CROSS JOIN clock
			{device of w}
			LEFT JOIN grants g ON g.task = w.held
			LEFT JOIN tasks t ON t.id = g.task
			{batch of g}
			LEFT JOIN ranked o ON o.n = w.n AND ` + shown + `
		ORDER BY w.n, o.batch, o.rank`
}
