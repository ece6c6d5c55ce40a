package store

import (
	"context"
	"database/sql"
	"net"
	"time"
)

// DB returns the SQL database, for tests that read or write it directly.
func (s *Store) DB() *sql.DB { return s.db.DB }

// Dialect returns "postgres" or "sqlite".
func (s *Store) Dialect() string { return s.name }

// Text returns the query in the SQL dialect of the database.
func (s *Store) Text(query string) string { return s.translate(query) }

// TasksQuery returns the SQL query with which Tasks reads the list of tasks.
func TasksQuery(f TaskFilter) (text string, args []any) {
	return f.matchingQuery(taskColumns, "").build(f.orderSQL(), f.Limit)
}

// MaxExaminedRows is the maximum number of rows that one reading of a list may examine.
const MaxExaminedRows = searchLimit

// RowsPerOpenPart is the number of rows that ForEachOpenDevice reads with one statement.
const RowsPerOpenPart = openRowsPerRead

// StartsText returns the SQL query of Starts, which reads starts of tasks.
func StartsText() string { return poolStartsSQL() }

// ViewsText returns the query of DeviceViews.
func ViewsText() string { return viewsText }

func WaitingViewText() string { return waitingViewText }

// OpenBatchesText returns the query of OpenBatches.
func OpenBatchesText() string { return openBatchesSQL() }

// UrgentBatchesText returns the query of UrgentBatches.
func UrgentBatchesText() string { return urgentBatchesSQL() }

// FoldTexts returns the statements with which Fold adds the deltas (changes of counts) {ids} to the counts. $2 is the lowest and $3 the
// highest of these ids.
func FoldTexts() []string { return append(foldStatements(), foldedBatches) }

// OldRatesText is the statement with which Fold deletes old rows of batch_rates.
const OldRatesText = deleteOldRates

// RetainTexts returns the statements with which Retain deletes rows, or finds the blocks of events to delete. The key names the kind of
// rows.
func RetainTexts() map[string]string {
	texts := map[string]string{"blocks of events": oldBlocksSQL}
	for _, old := range new(DeletedCounts).retentionRules(0) {
		texts[old.name] = old.deleteSQL
	}
	return texts
}

// PoolsWithWorkText returns the SQL query of PoolsWithWork.
func PoolsWithWorkText() string { return poolsWithWorkSQL() }

// PoolsWithUrgentText returns the query of PoolsWithUrgent.
func PoolsWithUrgentText() string { return poolsWithUrgentSQL() }

// BatchesText returns the query of Batches.
func BatchesText(f BatchFilter) string {
	text, _ := f.pageSQL(9, 100)
	return text
}

// CallersBeforeText returns the query of CallerBoundOf.
func CallersBeforeText() string { return callerBoundSQL() }

// NextCallersText returns the query with which NextCallers finds the holders.
func NextCallersText() string { return nextCallersSQL() }

// LeasesText returns the query of Leases.
func LeasesText() string { return leasesSQL() }

// SampleText returns the query with which SampleWaiting finds tasks of the sample.
func SampleText() string { return pointsText }

// PendingRangesText returns the query with which SampleWaiting finds the first and the last open task of each batch.
func PendingRangesText() string { return openRangesSQL }

// ReachableText returns the query of ReachableDevices.
func ReachableText() string { return reachableSQL() }

// AnswerLimit returns how long the ledger waits for an answer of Postgres if statement_timeout has this value.
func AnswerLimit(setting string) time.Duration { return answerTimeout(setting) }

// Dial opens a connection to Postgres in the same way as the driver does.
func Dial(ctx context.Context, limit time.Duration, address string) (net.Conn, error) {
	return (&dialer{ioTimeout: limit}).DialContext(ctx, "tcp", address)
}

// EventsQuery returns the query of Events.
func (s *Store) EventsQuery(ctx context.Context, f EventFilter) (text string, args []any, err error) {
	by, err := s.planSearch(ctx, f)
	text, args = by.eventsSQL()
	return text, args, err
}

// HoldingsQuery returns the query with which Holdings reads holdings (uses of a slot) that have ended.
func (s *Store) HoldingsQuery(ctx context.Context, f HoldingFilter) (text string, args []any, err error) {
	by, _, err := s.planEndEventSearch(ctx, f)
	text, args = f.endedHoldingsSQL(by)
	return text, args, err
}

// EventNearText is the query that finds the id of an event near a time.
const EventNearText = eventIDNearSQL

// MinutesText is the query of PoolMinutes.
const MinutesText = minutesText

// MaxExaminedEvents is the maximum number of events that one reading of a pool's history examines.
const MaxExaminedEvents = holdingsSearchLimit

// PoolStatsText returns the query of PoolStats.
func PoolStatsText() string { return poolStatsSQL(storedStates()[1:]) }

// PoolRanksText returns the query of PoolRanks.
func PoolRanksText() string { return poolRanksSQL() }

// BatchesNamedText returns the query of BatchesNamed.
func BatchesNamedText() string { return batchesNamedSQL() }

// FailedWithText returns the query with which TasksByErrorPrefix reads the tasks of one pair of a batch and a state.
func FailedWithText() string { return tasksByErrorPrefixSQL() }

// FailedPlacesText returns the query with which TasksByErrorPrefix finds the pairs of a batch and a state.
func FailedPlacesText() string { return batchesWithFailuresSQL() }

// WaitingHereText returns the query of CountWaitingDevices.
func WaitingHereText() string { return waitingDevicesSQL() }

// ResultsQuery returns the query of Results.
func ResultsQuery(f ResultFilter) (text string, args []any) {
	q := f.resultsQuery()
	return q.text, q.args
}

// SampleQuery returns two queries of SampleResults. The first query (text) reads at most maxRows results with task ids <= until. The second
// query (ends) reads the lowest and the highest id.
func SampleQuery(sample SampleSpec, until int64, maxRows int) (text string, args []any, ends string) {
	q := sample.chunkQuery(until, maxRows)
	return q.text, q.args, sample.idBoundsSQL()
}

// ExpiryTexts returns two queries of the pass that expires tasks. The first finds tasks whose batch is past its not_after. The second finds
// tasks that are past their own not_after.
func ExpiryTexts() []string {
	return []string{expiryRules()[0].findTasksSQL(), expiryRules()[1].findTasksSQL()}
}

// OverdueText returns the query that finds batches whose tasks have waited too long.
func OverdueText() string { return overdueText }

// FillCounts reads the counts of batches that were read before, as Batch and Batches do.
func (s *Store) FillCounts(ctx context.Context, batches []Batch) error {
	return s.fillCounts(ctx, batches)
}

// EndWaitedTooLong ends those of the given tasks that have waited longer than their MaxWait, as ExpireWaited does after its search.
func (s *Store) EndWaitedTooLong(ctx context.Context, tasks ...int64) (int, error) {
	return s.endWaitingTasks(ctx, maxWaitRule(tasks), len(tasks))
}

// EndAfterDeadline ends those of the given tasks that are past the not_after of their batch or their own not_after, as Expire does after its
// search.
func (s *Store) EndAfterDeadline(ctx context.Context, tasks ...int64) (int, error) {
	for _, search := range expiryRules() {
		search.fromSQL, search.args, search.order = `FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, []any{idsToJSONArray(tasks...)}, ""
		if n, err := s.endWaitingTasks(ctx, search, len(tasks)); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, nil
}
