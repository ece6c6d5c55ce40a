package store

import (
	"context"
	"database/sql"
	"net"
	"time"
)

// DB returns the database, for tests that access it directly.
func (s *Store) DB() *sql.DB { return s.db.DB }

// Dialect returns "postgres" or "sqlite".
func (s *Store) Dialect() string { return s.name }

// Text returns query in the dialect of the database.
func (s *Store) Text(query string) string { return s.text(query) }

// TasksQuery returns the query of Tasks.
func TasksQuery(f TaskFilter) (text string, args []any) {
	return f.matching(taskColumns, "").end(f.order(), f.Limit)
}

// LookedAt is the maximum number of rows that one reading of a list examines.
const LookedAt = lookedAt

// OpenPart is the number of rows that one statement of EachOpen reads.
const OpenPart = openPart

// StartsText returns the query of Starts.
func StartsText() string { return startsText() }

// ViewsText returns the query of Views.
func ViewsText() string { return viewsText }

func WaitingViewText() string { return waitingViewText }

// OpenBatchesText returns the query of OpenBatches.
func OpenBatchesText() string { return openBatches() }

// UrgentBatchesText returns the query of UrgentBatches.
func UrgentBatchesText() string { return urgentBatches() }

// FoldTexts returns the statements of Fold for the deltas {ids}. All ids are from $2 to $3.
func FoldTexts() []string { return append(folds(), foldedBatches) }

// OldRatesText is the statement with which Fold deletes old rows of batch_rates.
const OldRatesText = oldRates

// RetainTexts returns the statements with which Retain deletes rows, by the name of the deleted rows.
func RetainTexts() map[string]string {
	texts := map[string]string{}
	for _, old := range new(Retained).kinds(0) {
		texts[old.name] = old.text
	}
	return texts
}

// PoolsWithWorkText returns the query of PoolsWithWork.
func PoolsWithWorkText() string { return poolsWithWork() }

// PoolsWithUrgentText returns the query of PoolsWithUrgent.
func PoolsWithUrgentText() string { return poolsWithUrgent() }

// BatchesText returns the query of Batches.
func BatchesText(f BatchFilter) string {
	text, _ := f.page(9, 100)
	return text
}

// CallersBeforeText returns the query of CallersBefore.
func CallersBeforeText() string { return callersBefore() }

// NextCallersText returns the query of NextCallers for the holders.
func NextCallersText() string { return nextCallers() }

// LeasesText returns the query of Leases.
func LeasesText() string { return leasesText() }

// ReachableText returns the query of ReachableDevices.
func ReachableText() string { return reachableText() }

// AnswerLimit returns the longest wait for an answer with this value of statement_timeout in Postgres.
func AnswerLimit(setting string) time.Duration { return answerLimit(setting) }

// Dial opens a connection in the same way as the driver.
func Dial(ctx context.Context, limit time.Duration, address string) (net.Conn, error) {
	return (&dialer{limit: limit}).DialContext(ctx, "tcp", address)
}

// EventsQuery returns the query of Events.
func (s *Store) EventsQuery(ctx context.Context, f EventFilter) (text string, args []any, err error) {
	by, err := s.seek(ctx, f)
	text, args = by.matching()
	return text, args, err
}

// HoldingsQuery returns the query of Holdings for ended holdings.
func (s *Store) HoldingsQuery(ctx context.Context, f HoldingFilter) (text string, args []any, err error) {
	by, _, err := s.endsOf(ctx, f)
	text, args = f.ended(by)
	return text, args, err
}

// EventNearText is the query that finds a time in the log.
const EventNearText = eventNear

// MinutesText is the query of Minutes.
const MinutesText = minutesText

// HoldingsLooked is the maximum number of events that one reading of holdings examines.
const HoldingsLooked = holdingsLooked

// PoolStatsText returns the query of PoolStats.
func PoolStatsText() string { return poolStatsText(keptStates()[1:]) }

// PoolRanksText returns the query of PoolRanks.
func PoolRanksText() string { return poolRanksText() }

// BatchesNamedText returns the query of BatchesNamed.
func BatchesNamedText() string { return batchesNamedText() }

// FailedWithText returns the query of FailedWith for one place (a batch and a state).
func FailedWithText() string { return failedWithText() }

// FailedPlacesText returns the query with which FailedWith finds its places.
func FailedPlacesText() string { return failedPlacesText() }

// WaitingHereText returns the query of WaitingHere.
func WaitingHereText() string { return waitingHere() }

// ResultsQuery returns the query of Results.
func ResultsQuery(f ResultFilter) (text string, args []any) {
	q := f.query()
	return q.text, q.args
}

// SampleQuery returns two queries of SampleResults: text reads its first stretch, and ends reads the ends.
func SampleQuery(of Sample, until int64, most int) (text string, args []any, ends string) {
	q := of.query(until, most)
	return q.text, q.args, of.ends()
}

// ExpiryTexts returns two queries. The first finds tasks after the end of their batch, the second finds tasks after their own end.
func ExpiryTexts() []string { return []string{expiries()[0].text(), expiries()[1].text()} }

// OverdueText returns the query that finds batches with tasks that waited too long.
func OverdueText() string { return overdueText }

// EndTooLong ends tasks that a search has found because they waited too long.
func (s *Store) EndTooLong(ctx context.Context, tasks ...int64) (int, error) {
	return s.endWaiting(ctx, tooLong(tasks), len(tasks))
}

// EndPassed ends tasks that a search has found because they are after the end of their batch or after their own end.
func (s *Store) EndPassed(ctx context.Context, tasks ...int64) (int, error) {
	for _, way := range expiries() {
		way.rows, way.args, way.order = `FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, []any{ids(tasks...)}, ""
		if n, err := s.endWaiting(ctx, way, len(tasks)); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}
