package store

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
)

// EventFilter selects events. A field with its zero value does not restrict the selection.
type EventFilter struct {
	After     int64 // only events with id > After, in ascending order unless Newest is true
	Before    int64 // only events with id < Before; 0 means no bound
	Newest    bool  // descending order of ids
	Kind      string
	Actor     string
	ActorKind ActorKind
	Pool      string
	Batch     int64
	Task      int64 // id of a task; if the task exists, only the events of its device are searched
	Device    string
	Since     time.Time // only events at that time or later; zero means no bound
	Until     time.Time // only events before that time; zero means no bound
	Limit     int       // default 100, at most 1000
}

// LimitTo restricts the filter to the ids up to bound.End, in the order of the filter. An End of 0 changes nothing.
func (f *EventFilter) LimitTo(bound SearchBound) {
	switch {
	case bound.End == 0:
	case f.Newest:
		f.After = max(f.After, bound.End-1)
	case f.Before == 0 || f.Before > bound.End:
		f.Before = bound.End + 1
	}
}

func (f EventFilter) directionSQL() string {
	if f.Newest {
		return "DESC"
	}
	return ""
}

func (f EventFilter) addConditions(q *query) {
	whereIfSet(q, "e.kind = %s", f.Kind)
	whereIfSet(q, "e.actor = %s", f.Actor)
	whereIfSet(q, "e.actor_kind = %s", string(f.ActorKind))
	whereIfSet(q, "e.pool = %s", f.Pool)
	whereIfSet(q, "e.batch = %s", f.Batch)
	whereIfSet(q, "e.task = %s", f.Task)
	whereIfSet(q, "e.device = %s", f.Device)
	q.whereTimeBetween("e.at", f.Since, f.Until)
}

// WithIDRange adds bounds on the ids (After and Before), computed from filter.Since and filter.Until, so that the query does not read
// events that are much older or newer. Call it before EventSearchBound.
func (s events) WithIDRange(ctx context.Context, filter EventFilter) (EventFilter, error) {
	if !filter.Since.IsZero() {
		first, err := s.eventIDNear(ctx, filter.Since.Add(-clockSlack))
		if err != nil {
			return filter, err
		}
		filter.After = max(filter.After, first-1)
	}
	if !filter.Until.IsZero() {
		beyond, err := s.eventIDNear(ctx, filter.Until.Add(clockSlack))
		if err != nil {
			return filter, err
		}
		if filter.Before == 0 || filter.Before > beyond {
			filter.Before = max(beyond, 1)
		}
	}
	return filter, nil
}

// eventSearch is an EventFilter with the values that choose an index. The first of device, kind, actor, actorKind and pool that is not
// empty names the column whose index finds the events. If all are empty, the primary key finds them.
type eventSearch struct {
	EventFilter
	device, kind, actor, actorKind, pool string
}

// planSearch returns the search for filter. If filter names a task, planSearch looks up the device of the task, because all events of the task
// have this device. If filter names a batch, it looks up the pool of the batch. If the task or batch was deleted, the device or pool stays
// empty. The indexes of kinds and actor kinds lack the events of tasks and devices.
func (s events) planSearch(ctx context.Context, filter EventFilter) (search eventSearch, err error) {
	search = eventSearch{EventFilter: filter, device: filter.Device, pool: filter.Pool, actor: filter.Actor}
	if !strings.HasPrefix(filter.Kind, "task.") {
		search.kind = filter.Kind
	}
	if filter.ActorKind != ActorDevice {
		search.actorKind = string(filter.ActorKind)
	}
	for _, owner := range []struct {
		id    int64
		dest  *string
		query string
	}{
		{filter.Task, &search.device, `SELECT device FROM tasks WHERE id = $1`},
		{filter.Batch, &search.pool, `SELECT pool FROM batches WHERE id = $1`},
	} {
		if owner.id == 0 || *owner.dest != "" {
			continue
		}
		if *owner.dest, err = queryOne(ctx, s.readSession(), singleColumn[string], owner.query, owner.id); err != nil && !errors.Is(err, ErrNotFound) {
			return search, err
		}
	}
	return search, nil
}

// isIndexed reports whether candidatesSQL selects exactly the events that match.
func (f eventSearch) isIndexed() bool {
	q := &query{}
	f.addConditions(q)
	return len(q.conds) == 0 || len(q.conds) == 1 && cmp.Or(f.Device, f.kind, f.actorKind, f.Pool) != ""
}

// candidatesSQL returns the query that reads at most maxRows events by an index, in the order of the filter, and adds its arguments to q. The
// caller must add the other conditions of the filter. The query repeats the conditions of partial indexes, because SQLite uses a partial index
// only if the query contains the condition of the index.
func (f eventSearch) candidatesSQL(q *query, maxRows int) string {
	s := idRange{after: q.addArg(f.After), before: q.addArg(cmp.Or(f.Before, math.MaxInt64)), direction: f.directionSQL(), limit: q.addArg(maxRows)}
	switch {
	case f.device != "":
		return `SELECT * FROM events WHERE device <> '' AND ` + s.whereAndOrderSQL("device", q.addArg(f.device))
	case f.kind != "":
		return `SELECT * FROM events WHERE kind NOT LIKE 'task.%' AND ` + s.whereAndOrderSQL("kind", q.addArg(f.kind))
	case f.actor != "":
		// The index on actor lacks the events whose actor is the device of the event. The index on device finds these events.
		name := q.addArg(f.actor)
		return `SELECT * FROM (
			SELECT * FROM (SELECT * FROM events WHERE actor <> device AND ` + s.whereAndOrderSQL("actor", name) + `) AS others
			UNION ALL SELECT * FROM (SELECT * FROM events WHERE device <> '' AND ` + s.whereAndOrderSQL("device", name) + `) AS own) AS found
			WHERE ` + s.whereAndOrderSQL("", "")
	case f.actorKind != "":
		return `SELECT * FROM events WHERE actor_kind <> 'device' AND ` + s.whereAndOrderSQL("actor_kind", q.addArg(f.actorKind))
	case f.pool != "":
		return `SELECT * FROM events WHERE pool <> '' AND ` + s.whereAndOrderSQL("pool", q.addArg(f.pool))
	}
	return `SELECT * FROM events WHERE ` + s.whereAndOrderSQL("", "")
}

// namedEventColumns are all columns of the event e, and the name of its batch.
const namedEventColumns = eventColumns + `, coalesce((SELECT b.name FROM batches b WHERE b.id = e.batch), '')`

func namedEventScanDest(event *Event) (scanDest []any) {
	return append(eventScanDest(event), &event.BatchName)
}

func (f eventSearch) eventsSQL() (text string, args []any) {
	q := &query{}
	maxRows := searchLimit
	if f.isIndexed() {
		maxRows = clampLimit(f.Limit)
	}
	q.text = `SELECT ` + namedEventColumns + ` FROM (` + f.candidatesSQL(q, maxRows) + `) AS e`
	f.addConditions(q)
	return q.build(" ORDER BY e.id "+f.directionSQL(), f.Limit)
}

// EventSearchBound returns the id up to which one request searches for events. There is no bound if an index serves filter.
func (s events) EventSearchBound(ctx context.Context, filter EventFilter) (SearchBound, error) {
	search, err := s.planSearch(ctx, filter)
	if err != nil || search.isIndexed() {
		return SearchBound{}, err
	}
	if cmp.Or(search.device, search.kind, search.actor, search.actorKind, search.pool) != "" {
		q := &query{}
		return s.searchBound(ctx, q, search.candidatesSQL(q, searchLimit), filter.directionSQL())
	}
	q := &query{}
	first := `(` + search.candidatesSQL(q, 1) + `) AS first`
	far := q.addArg(searchLimit - 1)
	var end string
	if filter.Newest {
		end = `SELECT CASE WHEN first.id > ` + far + ` THEN first.id - ` + far + ` ELSE 1 END, (SELECT min(id) FROM events WHERE id > ` + q.addArg(filter.After) + `) < first.id - ` + far
	} else {
		end = `SELECT first.id + ` + far + `, (SELECT max(id) FROM events WHERE id < ` + q.addArg(cmp.Or(filter.Before, math.MaxInt64)) + `) > first.id + ` + far
	}
	bound, err := queryOne(ctx, s.customPlanSession(), func(to *SearchBound) []any { return []any{&to.End, &to.More} }, end+` FROM `+first, q.args...)
	if errors.Is(err, ErrNotFound) {
		return SearchBound{}, nil
	}
	return bound, err
}

// Events returns the events that match filter, in the order of ids. Beyond the EventSearchBound, some events may be missing. Ids are given
// before the commit, so an event with a lower id can become readable later than an event with a higher id (see ReadEventPosition and
// EventsComplete).
func (s events) Events(ctx context.Context, filter EventFilter) ([]Event, error) {
	search, err := s.planSearch(ctx, filter)
	if err != nil {
		return nil, err
	}
	text, args := search.eventsSQL()
	found, err := collect(ctx, s.customPlanSession(), namedEventScanDest, text, args...)
	if err != nil || filter.Pool == "" || filter.Kind != "" && !strings.HasPrefix(filter.Kind, "pools.") {
		return found, err
	}
	text, args = filter.eventsOfManyPoolsSQL()
	more, err := collect(ctx, s.customPlanSession(), namedEventScanDest, text, args...)
	if err != nil || len(more) == 0 {
		return found, err
	}
	found = append(found, more...)
	slices.SortFunc(found, func(a, b Event) int { return cmp.Compare(a.ID, b.ID) })
	if filter.Newest {
		slices.Reverse(found)
	}
	return found[:min(len(found), clampLimit(filter.Limit))], nil
}

// eventsOfManyPoolsSQL returns the statement for the events about several pools, including f.Pool. The column pool of such an event is empty,
// and its detail begins with the names of the pools.
func (f EventFilter) eventsOfManyPoolsSQL() (text string, args []any) {
	pool := f.Pool
	f.Pool = ""
	q := &query{text: `SELECT ` + namedEventColumns + ` FROM events e`, conds: []string{`e.kind IN ('` + poolsPaused + `', '` + poolsResumed + `') AND e.kind NOT LIKE 'task.%'`}}
	q.where("e.id > %s", f.After)
	q.where("e.id < %s", cmp.Or(f.Before, math.MaxInt64))
	q.where("replace(',' || {first word} || ',', %s, '') <> ',' || {first word} || ','", ","+pool+",")
	f.addConditions(q)
	return q.build(" ORDER BY e.id "+f.directionSQL(), f.Limit)
}
