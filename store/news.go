package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// news holds the rows by which a transaction notifies all replicas. A row means that devices may have work, that another token may act for
// a device, or that the reasons for which devices wait may have changed.
type news struct{ *connection }

// OnNews sets the function that is called after each commit of this process that added news of possible work for devices. newestID is the
// highest id of these news. Call OnNews before the store is used.
func (s news) OnNews(handler func(ctx context.Context, newestID int64)) { s.onNews = handler }

// newsKept is the time after which rows of News are deleted.
const newsKept = time.Hour

// News is one row of the change log for all replicas. It concerns one device, the devices with open tasks in a batch, the devices that wait
// in a pool, or, if all three are empty, all devices.
type News struct {
	ID     int64  `json:"-"`
	Batch  int64  `json:"batch"`
	Device string `json:"device"`
	Pool   string `json:"pool"` // the name of a pool, or AllPools
}

// AllPools is the Pool of a row of News that concerns the waiting devices of all pools. No pool has this name.
const AllPools = "*"

// ChangesWaitsOnly reports whether only the reasons for which devices wait in a pool may have changed, so that no device has new work.
func (n News) ChangesWaitsOnly() bool { return n.Pool != "" }

// NewsPage is the result of NewsSince.
type NewsPage struct {
	Now    time.Time // time of the reading, by the database's clock
	Oldest int64     // the lowest id of the rows that are kept
	Newest int64     // ids are given in the order of commits, so all rows up to this id can be read
	Rows   []News    // in the order of ids; if there are more than maxNewsRows, only the oldest maxNewsRows
}

// maxNewsRows is the maximum number of rows that NewsSince returns.
const maxNewsRows = 10_000

// NewsSince reads the news (rows of the change log, see News) with an id greater than afterID.
func (s news) NewsSince(ctx context.Context, afterID int64) (page NewsPage, err error) {
	err = s.readSession().scanRow(ctx, []any{&page.Now, &page.Oldest, &page.Newest}, `SELECT {now}, min(id), max(id) FROM news`)
	if err != nil || page.Newest <= afterID {
		return page, err
	}
	page.Rows, err = collect(ctx, s.readSession(), func(n *News) []any { return []any{&n.ID, &n.Batch, &n.Device, &n.Pool} },
		`SELECT id, batch, device, pool FROM news WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3`, afterID, page.Newest, maxNewsRows)
	return page, err
}

// openRowsPerRead is the maximum number of rows that one statement of ForEachOpenDevice reads.
const openRowsPerRead = 20_000

// ForEachOpenDevice calls handle with the device of each open task of a batch. If batch is 0, it reads all batches. It may call handle
// several times with the same device. It misses no task that is open during the whole call.
func (s news) ForEachOpenDevice(ctx context.Context, batch int64, handle func(device string)) error {
	if batch != 0 {
		return s.forEachOpenInBatch(ctx, batch, handle)
	}
	type at struct{ pool, device string }
	for last := (at{}); ; {
		part, err := collect(ctx, s.customPlanSession(), func(a *at) []any { return []any{&a.pool, &a.device} }, `
			SELECT DISTINCT pool, device FROM tasks WHERE state = 'pending' AND (pool, device) > ($1, $2) ORDER BY pool, device LIMIT $3`,
			last.pool, last.device, openRowsPerRead)
		if err != nil {
			return fmt.Errorf("reading the open tasks: %w", err)
		}
		for _, a := range part {
			handle(a.device)
		}
		if len(part) < openRowsPerRead {
			return nil
		}
		last = part[len(part)-1]
	}
}

func (s news) forEachOpenInBatch(ctx context.Context, batch int64, handle func(device string)) error {
	type at struct {
		task   int64
		device string
	}
	for last := (at{}); ; {
		part, err := collect(ctx, s.customPlanSession(), func(a *at) []any { return []any{&a.task, &a.device} }, `
			SELECT id, device FROM tasks WHERE batch = $1 AND state = 'pending' AND id > $2 ORDER BY id LIMIT $3`, batch, last.task, openRowsPerRead)
		if err != nil {
			return fmt.Errorf("reading the open tasks of batch %d: %w", batch, err)
		}
		for _, a := range part {
			handle(a.device)
		}
		if len(part) < openRowsPerRead {
			return nil
		}
		last = part[len(part)-1]
	}
}

// pendingNews collects the news of a transaction. The news get their ids at the end of the transaction, because giving ids needs a lock for
// which other transactions wait.
type pendingNews struct {
	rows        []News // each row once (add)
	known       map[News]bool
	newest      int64 // highest id of the added rows, set by addNews
	makesNoWork bool  // if true, the news make no work for devices, so notifyNews does nothing
}

// addBatch adds a row which means that the devices with open tasks in the batch with this id may have work.
func (t *pendingNews) addBatch(id int64) { t.add(News{Batch: id}) }

// addPool adds a row which means that the devices that wait in the pool with this name (or in AllPools) may start at other times or wait for
// other reasons. The row marks no device, because a pool may have a million devices.
func (t *pendingNews) addPool(name string) { t.add(News{Pool: name}) }

// addAllDevices adds a row which means that all devices may have work.
func (t *pendingNews) addAllDevices() { t.add(News{}) }

// addDevices adds, for each device in ids, a row which means that the device may have work, or that another token may act for it.
func (t *pendingNews) addDevices(ids ...string) {
	for _, id := range ids {
		t.add(News{Device: id})
	}
}

// add adds row, unless the same row was added before in this transaction.
func (t *pendingNews) add(row News) {
	if t.known[row] {
		return
	}
	if t.known == nil {
		t.known = make(map[News]bool)
	}
	t.known[row] = true
	t.rows = append(t.rows, row)
}

// addNews inserts the news of the transaction, as its last step.
func (s session) addNews(ctx context.Context) error {
	if len(s.pendingNews.rows) == 0 {
		return nil
	}
	if s.lockNews != "" {
		if _, err := s.exec(ctx, s.lockNews); err != nil {
			return fmt.Errorf("waiting for other writers of news: %w", err)
		}
	}
	given, err := collect(ctx, s, singleColumn[int64], `
		INSERT INTO news (batch, device, pool) SELECT batch, device, pool FROM {news} WHERE TRUE RETURNING id`, rowsToJSONArray(s.pendingNews.rows))
	if err != nil {
		return fmt.Errorf("adding news: %w", err)
	}
	for _, id := range given {
		s.pendingNews.newest = max(s.pendingNews.newest, id)
	}
	return nil
}

// notifyNews calls the handler for the news of a transaction, unless the COMMIT failed. commitErr is the error of the COMMIT. The handler is
// also called for ErrOutcomeUnknown. So the handler must read whether the news exist.
func (s *connection) notifyNews(ctx context.Context, news pendingNews, commitErr error) {
	if s.onNews != nil && news.newest > 0 && !news.makesNoWork && (commitErr == nil || errors.Is(commitErr, ErrOutcomeUnknown)) {
		s.onNews(ctx, news.newest)
	}
}
