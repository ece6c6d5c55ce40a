package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Holding is one period in which a device held a slot. A holding is in force while the device holds the slot.
type Holding struct {
	ID        int64 // order of the holdings: first ended holdings, by the event of the end; then holdings in force, by token
	Pool      string
	Slot      int
	Device    string
	Task      int64
	Batch     int64
	Token     int64
	Attempt   int
	GrantedAt time.Time
	EndedAt   *time.Time // nil means that the holding is in force
	EndedBy   EndCause   // empty means that the holding is in force
	Error     string
}

// HoldingFilter selects holdings of a pool or, if Pool is empty, of a device.
type HoldingFilter struct {
	Pool   string
	Device string
	Slots  *SlotRange // nil means all slots
	From   time.Time  // only holdings that ended at that time or later, or are in force; zero means no bound
	To     time.Time  // only holdings that ended before that time; zero also includes holdings in force
	Newest bool       // order by the latest end first
	After  int64      // only ids > After; ignored if Newest is true
	Before int64      // only ids < Before; 0 means no bound
	Limit  int        // default 100, at most 1000
}

// SlotRange is the range of slots from First to Last, including both.
type SlotRange struct{ First, Last int }

const (
	// inForceIDBase is greater than every event id. The id of a holding that has not ended is inForceIDBase plus its token.
	inForceIDBase = 1 << 54

	// holdingsSearchLimit is the maximum number of events of a pool that one call searches.
	holdingsSearchLimit = 20_000

	// clockSlack is the maximum time by which an event can be earlier than an event with a lower id.
	clockSlack = time.Minute
)

// isHoldingEndSQL is the condition that an event ends a holding, which the token of the event identifies.
const isHoldingEndSQL = isSlotEventSQL + ` AND kind <> 'task.granted'`

// ownerColumn returns the column (pool or device) by which the filter selects, and its value.
func (f HoldingFilter) ownerColumn() (column, value string) {
	if f.Pool == "" {
		return "device", f.Device
	}
	return "pool", f.Pool
}

func (f HoldingFilter) slotRange() SlotRange {
	if f.Slots == nil {
		return SlotRange{0, math.MaxInt32}
	}
	return *f.Slots
}

// Holdings returns a page of the holdings that match filter. If the page is not full, the next call continues after the SearchBound. Ended
// holdings are found through the events of the pool or device. Holdings in force are grants.
func (s pools) Holdings(ctx context.Context, filter HoldingFilter) ([]Holding, SearchBound, error) {
	filter.Limit = clampLimit(filter.Limit)
	// Holdings in force are read before ended holdings. So a holding that ends between the two reads is found twice instead of never.
	held, err := s.holdingsInForce(ctx, filter)
	if err != nil || filter.Newest && len(held) == filter.Limit || !filter.Newest && filter.After >= inForceIDBase {
		return held, SearchBound{}, err
	}
	ended, bound, err := s.endedHoldings(ctx, filter)
	if err != nil {
		return nil, SearchBound{}, err
	}
	held = slices.DeleteFunc(held, func(h Holding) bool {
		return slices.ContainsFunc(ended, func(e Holding) bool { return e.Token == h.Token })
	})
	switch {
	case filter.Newest:
		ended = append(held, ended...)
	case !bound.More && len(ended) < filter.Limit:
		ended = append(ended, held...)
	}
	return ended[:min(len(ended), filter.Limit)], bound, nil
}

func holdingScanDest(holding *Holding) (scanDest []any) {
	return []any{
		&holding.ID, &holding.Pool, &holding.Slot, &holding.Device, &holding.Task, &holding.Batch, &holding.Token, &holding.Attempt,
		&holding.GrantedAt, &holding.EndedAt, &holding.EndedBy, &holding.Error,
	}
}

func (s pools) holdingsInForce(ctx context.Context, filter HoldingFilter) ([]Holding, error) {
	before := int64(math.MaxInt64)
	if filter.Before > 0 {
		before = filter.Before
	}
	if !filter.To.IsZero() || filter.Newest && before <= inForceIDBase {
		return nil, nil
	}
	slots, order := filter.slotRange(), EventFilter{Newest: filter.Newest}.directionSQL()
	column, owner := filter.ownerColumn()
	held, err := collect(ctx, s.readSession(), holdingScanDest, `
		SELECT * FROM (
			SELECT `+fmt.Sprint(int64(inForceIDBase))+` + token AS id, pool, slot, device, task, batch, token, attempt, granted_at, NULL, NULL, ''
			FROM grants WHERE `+column+` = $1 AND slot BETWEEN $2 AND $3) AS held
		WHERE id > $4 AND id < $5 ORDER BY id `+order+` LIMIT $6`, owner, slots.First, slots.Last, filter.After, before, filter.Limit)
	if err != nil {
		return nil, fmt.Errorf("reading the present holdings of %s %s: %w", column, owner, err)
	}
	return held, nil
}

func (s pools) endedHoldings(ctx context.Context, filter HoldingFilter) ([]Holding, SearchBound, error) {
	column, owner := filter.ownerColumn()
	search, bound, err := s.planEndEventSearch(ctx, filter)
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("reading the history of %s %s: %w", column, owner, err)
	}
	text, args := filter.endedHoldingsSQL(search)
	ended, err := collect(ctx, s.customPlanSession(), holdingScanDest, text, args...)
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("reading the history of %s %s: %w", column, owner, err)
	}
	return ended, bound, nil
}

// planEndEventSearch returns the search for the events that ended holdings. The search is limited to searchedBound, the part of the log that
// one call may search.
func (s pools) planEndEventSearch(ctx context.Context, filter HoldingFilter) (search eventSearch, searchedBound SearchBound, err error) {
	bounds := EventFilter{Newest: filter.Newest, After: filter.After, Before: min(filter.Before, inForceIDBase), Since: filter.From, Until: filter.To}
	if bounds, err = events(s).WithIDRange(ctx, bounds); err != nil {
		return search, searchedBound, err
	}
	search = eventSearch{EventFilter: bounds, pool: filter.Pool, device: filter.Device}
	q := &query{}
	searchedBound, err = s.searchBoundAfter(ctx, q, search.candidatesSQL(q, holdingsSearchLimit), search.directionSQL(), holdingsSearchLimit)
	search.LimitTo(searchedBound)
	return search, searchedBound, err
}

// endedHoldingsSQL returns the statement for the holdings that the events of search ended. The statement stops when the page is full.
func (f HoldingFilter) endedHoldingsSQL(search eventSearch) (text string, args []any) {
	q := &query{}
	column, _ := f.ownerColumn()
	q.text = `SELECT e.id, e.pool, a.slot, a.device, a.task, e.batch, a.token, a.number, a.granted_at, a.ended_at, a.ended_by, a.error
		FROM (SELECT id, pool, device, batch, token FROM (` + search.candidatesSQL(q, holdingsSearchLimit) + `) AS looked WHERE ` + isHoldingEndSQL + `) AS e {attempt of e}`
	if f.Slots != nil {
		q.where("a.slot >= %s", f.Slots.First)
		q.where("a.slot <= %s", f.Slots.Last)
	}
	q.whereTimeBetween("a.ended_at", f.From, f.To)
	return q.build(" ORDER BY e."+column+" "+search.directionSQL()+", e.id "+search.directionSQL(), f.Limit)
}

// eventIDNear returns the approximate id of the first event at the time moment or later. It uses a binary search, because ids increase almost
// in the order of times. If there is no such event, it returns an id above the last event.
func (s *connection) eventIDNear(ctx context.Context, moment time.Time) (eventID int64, err error) {
	defer wrapError(&err, "finding a time in the log")
	id, err := queryOne(ctx, s.customPlanSession(), singleColumn[int64], eventIDNearSQL, moment.UnixMilli())
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return id, err
}

// isBeforeTimeSQL is the condition by which eventIDNearSQL halves its range. It is true if the first event with an id >= (low + high) / 2 was
// before the time $1.
const isBeforeTimeSQL = `coalesce((SELECT at FROM events WHERE id >= (low + high) / 2 ORDER BY id LIMIT 1) < {epoch} + CAST($1 AS bigint) * {ms}, FALSE)`

const eventIDNearSQL = `
	WITH RECURSIVE found(low, high) AS (
		SELECT coalesce((SELECT id FROM events ORDER BY id LIMIT 1), 0), coalesce((SELECT id FROM events ORDER BY id DESC LIMIT 1), 0) + 1
		UNION ALL
		SELECT CASE WHEN ` + isBeforeTimeSQL + ` THEN (low + high) / 2 + 1 ELSE low END, CASE WHEN ` + isBeforeTimeSQL + ` THEN high ELSE (low + high) / 2 END
		FROM found WHERE low < high)
	SELECT low FROM found WHERE low >= high`
