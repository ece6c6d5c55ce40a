package store

import (
	"context"
	"database/sql"
	"net"
	"time"
)

// DB is the database itself, for tests that look behind the methods.
func (s *Store) DB() *sql.DB { return s.db.DB }

// Dialect is "postgres" or "sqlite".
func (s *Store) Dialect() string { return s.name }

// Text is a statement in the words of the database.
func (s *Store) Text(query string) string { return s.text(query) }

// TasksQuery is what Tasks asks.
func TasksQuery(f TaskFilter) (text string, args []any) {
	return f.matching(taskColumns, "").end(f.order(), f.Limit)
}

// LookedAt is how many rows a reading of a list looks at.
const LookedAt = lookedAt

// OpenPart is how many rows one statement of EachOpen reads.
const OpenPart = openPart

// StartsText is what Starts asks.
func StartsText() string { return startsText() }

// ViewsText is what Views asks.
func ViewsText() string { return viewsText }

func WaitingViewText() string { return waitingViewText }

// OpenBatchesText is what OpenBatches asks.
func OpenBatchesText() string { return openBatches() }

// UrgentBatchesText is what UrgentBatches asks.
func UrgentBatchesText() string { return urgentBatches() }

// FoldTexts are what Fold asks of the deltas {ids}, all of them between $2 and $3.
func FoldTexts() []string { return append(folds(), foldedBatches) }

// OldRatesText is what Fold removes of batch_rates.
const OldRatesText = oldRates

// RetainTexts are what Retain removes rows with, by their names.
func RetainTexts() map[string]string {
	texts := map[string]string{}
	for _, old := range new(Retained).kinds(0) {
		texts[old.name] = old.text
	}
	return texts
}

// PoolsWithWorkText is what PoolsWithWork asks.
func PoolsWithWorkText() string { return poolsWithWork() }

// PoolsWithUrgentText is what PoolsWithUrgent asks.
func PoolsWithUrgentText() string { return poolsWithUrgent() }

// BatchesText is what Batches asks for.
func BatchesText(f BatchFilter) string {
	text, _ := f.page(9, 100)
	return text
}

// CallersBeforeText is what CallersBefore asks.
func CallersBeforeText() string { return callersBefore() }

// NextCallersText is what NextCallers asks for the holders.
func NextCallersText() string { return nextCallers() }

// LeasesText is what Leases asks.
func LeasesText() string { return leasesText() }

// ReachableText is the query of ReachableDevices.
func ReachableText() string { return reachableText() }

// AnswerLimit is how long an answer is waited for, by the setting of Postgres.
func AnswerLimit(setting string) time.Duration { return answerLimit(setting) }

// Dial opens a connection as the driver does.
func Dial(ctx context.Context, limit time.Duration, address string) (net.Conn, error) {
	return (&dialer{limit: limit}).DialContext(ctx, "tcp", address)
}

// EventsQuery is what Events asks.
func (s *Store) EventsQuery(ctx context.Context, f EventFilter) (text string, args []any, err error) {
	by, err := s.seek(ctx, f)
	text, args = by.matching()
	return text, args, err
}

// HoldingsQuery is what Holdings asks of what ended.
func (s *Store) HoldingsQuery(ctx context.Context, f HoldingFilter) (text string, args []any, err error) {
	by, _, err := s.endsOf(ctx, f)
	text, args = f.ended(by)
	return text, args, err
}

// EventNearText is what finds a time in the log.
const EventNearText = eventNear

// MinutesText is what Minutes asks.
const MinutesText = minutesText

// HoldingsLooked is how many events a reading of holdings looks at.
const HoldingsLooked = holdingsLooked

// PoolStatsText is the reading of PoolStats.
func PoolStatsText() string { return poolStatsText(keptStates()[1:]) }

// PoolRanksText is the reading of PoolRanks.
func PoolRanksText() string { return poolRanksText() }

// BatchesNamedText is the reading of BatchesNamed.
func BatchesNamedText() string { return batchesNamedText() }

// FailedWithText is the reading of FailedWith in one place.
func FailedWithText() string { return failedWithText() }

// FailedPlacesText finds these places.
func FailedPlacesText() string { return failedPlacesText() }

// WaitingHereText is what WaitingHere asks.
func WaitingHereText() string { return waitingHere() }

// ResultsQuery is what Results asks.
func ResultsQuery(f ResultFilter) (text string, args []any) {
	q := f.query()
	return q.text, q.args
}

// SampleQuery is what SampleResults asks, for its first stretch and for the ends.
func SampleQuery(of Sample, until int64, most int) (text string, args []any, ends string) {
	q := of.query(until, most)
	return q.text, q.args, of.ends()
}

// ExpiryTexts find the tasks past the end of their batch, and those past their own.
func ExpiryTexts() []string { return []string{expiries()[0].text(), expiries()[1].text()} }

// OverdueText finds a batch of which tasks waited too long.
func OverdueText() string { return overdueText }

// EndTooLong ends tasks that were found to have waited too long.
func (s *Store) EndTooLong(ctx context.Context, tasks ...int64) (int, error) {
	return s.endWaiting(ctx, tooLong(tasks), len(tasks))
}

// EndPassed ends those of the tasks that were found to be past the end of their batch, and past their own.
func (s *Store) EndPassed(ctx context.Context, tasks ...int64) (int, error) {
	for _, way := range expiries() {
		way.rows, way.args, way.order = `FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, []any{ids(tasks...)}, ""
		if n, err := s.endWaiting(ctx, way, len(tasks)); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}
