package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// news are what may have made work for devices: batches, retries, and what decides who may
// act for a device. Replicas follow them.
type news struct{ *connection }

// TellNews is called after each commit of this process that had news which may make work,
// with the newest id.
type TellNews func(ctx context.Context, newest int64)

// OnNews has news told that this process commits. Call it before the store is used.
func (s news) OnNews(tell TellNews) { s.tell = tell }

// newsKept is how long news can be followed.
const newsKept = time.Hour

// News is one row: about one device, about all that a batch has open tasks for, or,
// without both, about all devices.
type News struct {
	ID     int64  `json:"-"`
	Batch  int64  `json:"batch"`
	Device string `json:"device"`
}

// NewsRead is a reading of the news.
type NewsRead struct {
	Now    time.Time // by the database's clock
	Oldest int64     // that is kept
	Newest int64     // ids are given in the order of the commits: all up to here are there to be read
	Rows   []News    // in the order of their ids; the oldest of those that were asked for, if there are many
}

// newsPart is how many rows a reading returns at most.
const newsPart = 10_000

// NewsSince reads the news after the one with this id.
func (s news) NewsSince(ctx context.Context, id int64) (read NewsRead, err error) {
	err = s.read().row(ctx, `SELECT {now}, min(id), max(id) FROM news`, instant{&read.Now}, &read.Oldest, &read.Newest)
	if err != nil || read.Newest <= id {
		return read, err
	}
	read.Rows, err = collect(ctx, s.read(), func(n *News) []any { return []any{&n.ID, &n.Batch, &n.Device} },
		`SELECT id, batch, device FROM news WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3`, id, read.Newest, newsPart)
	return read, err
}

// openPart is how many rows one statement of EachOpen reads.
const openPart = 20_000

// EachOpen calls each for the devices of the open tasks of a batch, or of all batches with 0;
// a device may come several times. A task that is open all the while is not missed.
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

// telling is the news of a transaction. They get their ids when all else is done: nobody
// waits for a transaction that holds the lock of the news and still works.
type telling struct {
	rows   []News
	newest int64 // set when they have their ids
	later  bool  // they make no work: nobody waits until they are followed
}

func (t *telling) batch(id int64) { t.rows = append(t.rows, News{Batch: id}) }

func (t *telling) everything() { t.rows = append(t.rows, News{}) }

func (t *telling) devices(ids ...string) {
	for _, id := range ids {
		t.rows = append(t.rows, News{Device: id})
	}
}

// addNews is the last that a transaction does.
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

// announce tells of news that were committed. That nobody knows whether they were is
// no reason to be silent: they are looked for.
func (s *connection) announce(ctx context.Context, news telling, err error) {
	if s.tell != nil && news.newest > 0 && !news.later && (err == nil || errors.Is(err, ErrOutcomeUnknown)) {
		s.tell(ctx, news.newest)
	}
}
