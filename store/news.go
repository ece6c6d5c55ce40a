package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// news is the part of the ledger that holds changes which may have made work for devices: new batches, retries, and changes of who may act
// for a device. Replicas follow them.
type news struct{ *connection }

// TellNews is called after each commit of this process that added news which may make work. newest is the highest id among them.
type TellNews func(ctx context.Context, newest int64)

// OnNews sets the function that is called for news that this process commits. Call it before the store is used.
func (s news) OnNews(tell TellNews) { s.tell = tell }

// newsKept is the time for which news are kept.
const newsKept = time.Hour

// News is one row: about one device, about all devices with open tasks in a batch, or, if both fields are empty, about all devices.
type News struct {
	ID     int64  `json:"-"`
	Batch  int64  `json:"batch"`
	Device string `json:"device"`
}

// NewsRead is the result of NewsSince.
type NewsRead struct {
	Now    time.Time // by the database's clock
	Oldest int64     // the lowest id that is kept
	Newest int64     // ids are given in the order of commits, so all rows up to this id can be read
	Rows   []News    // in the order of ids, at most newsPart; if there are more, the oldest
}

// newsPart is the maximum number of rows that NewsSince returns.
const newsPart = 10_000

// NewsSince reads the news with an id greater than id.
func (s news) NewsSince(ctx context.Context, id int64) (read NewsRead, err error) {
	err = s.read().row(ctx, `SELECT {now}, min(id), max(id) FROM news`, instant{&read.Now}, &read.Oldest, &read.Newest)
	if err != nil || read.Newest <= id {
		return read, err
	}
	read.Rows, err = collect(ctx, s.read(), func(n *News) []any { return []any{&n.ID, &n.Batch, &n.Device} },
		`SELECT id, batch, device FROM news WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3`, id, read.Newest, newsPart)
	return read, err
}

// openPart is the maximum number of rows that one statement of EachOpen reads.
const openPart = 20_000

// EachOpen calls each with the devices of the open tasks of a batch. If batch is 0, it covers all batches. A device may come several times.
// A task that is open during the whole call is not missed.
func (s news) EachOpen(ctx context.Context, batch int64, each func(device string)) error {
	if batch != 0 {
		return s.eachOf(ctx, batch, each)
	}
	type at struct{ pool, device string }
	for last := (at{}); ; {
		part, err := collect(ctx, s.planned(), func(a *at) []any { return []any{&a.pool, &a.device} }, `
			SELECT DISTINCT pool, device FROM tasks WHERE state = 'pending' AND (pool, device) > ($1, $2) ORDER BY pool, device LIMIT $3`,
			last.pool, last.device, openPart)
		if err != nil {
			return fmt.Errorf("reading the open tasks: %w", err)
		}
		for _, a := range part {
			each(a.device)
		}
		if len(part) < openPart {
			return nil
		}
		last = part[len(part)-1]
	}
}

func (s news) eachOf(ctx context.Context, batch int64, each func(device string)) error {
	type at struct {
		task   int64
		device string
	}
	for last := (at{}); ; {
		part, err := collect(ctx, s.planned(), func(a *at) []any { return []any{&a.task, &a.device} }, `
			SELECT id, device FROM tasks WHERE batch = $1 AND state = 'pending' AND id > $2 ORDER BY id LIMIT $3`, batch, last.task, openPart)
		if err != nil {
			return fmt.Errorf("reading the open tasks of batch %d: %w", batch, err)
		}
		for _, a := range part {
			each(a.device)
		}
		if len(part) < openPart {
			return nil
		}
		last = part[len(part)-1]
	}
}

// telling collects the news of a transaction. They get their ids at the end of the transaction, so that no other transaction waits for the
// lock of the news while this one still works.
type telling struct {
	rows   []News
	newest int64 // the highest id, set by addNews
	later  bool  // the news make no work, so the commit does not wait until they are followed
}

func (t *telling) batch(id int64) { t.rows = append(t.rows, News{Batch: id}) }

func (t *telling) everything() { t.rows = append(t.rows, News{}) }

func (t *telling) devices(ids ...string) {
	for _, id := range ids {
		t.rows = append(t.rows, News{Device: id})
	}
}

// addNews inserts the news. It must be the last step of a transaction.
func (s session) addNews(ctx context.Context) error {
	if len(s.telling.rows) == 0 {
		return nil
	}
	if s.lockNews != "" {
		if _, err := s.exec(ctx, s.lockNews); err != nil {
			return fmt.Errorf("waiting for other news: %w", err)
		}
	}
	given, err := collect(ctx, s, only[int64], `
		INSERT INTO news (batch, device) SELECT batch, device FROM {news} WHERE TRUE RETURNING id`, input(s.telling.rows))
	if err != nil {
		return fmt.Errorf("adding news: %w", err)
	}
	for _, id := range given {
		s.telling.newest = max(s.telling.newest, id)
	}
	return nil
}

// announce calls the function of OnNews for news that were committed. It also does so if the outcome of the COMMIT is unknown: the news are
// then looked for.
func (s *connection) announce(ctx context.Context, news telling, err error) {
	if s.tell != nil && news.newest > 0 && !news.later && (err == nil || errors.Is(err, ErrOutcomeUnknown)) {
		s.tell(ctx, news.newest)
	}
}
