package marks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// Ledger is what the marks follow; *store.Store.
type Ledger interface {
	NewsSince(ctx context.Context, id int64) (store.NewsRead, error)
	EachOpen(ctx context.Context, batch int64, each func(device string)) error
}

// Cache keeps the marks; *Hashes.
type Cache interface {
	Look(ctx context.Context, devices []string) []Sight
	Upto(ctx context.Context) ([parts]int64, error)
	Mark(ctx context.Context, from, to int64, all []Devices) error
	Unmark(ctx context.Context, device, version string) (bool, error)
}

// Config of a Follower.
type Config struct {
	Ledger   Ledger
	Cache    Cache
	Told     func(device string) // is called for each device that news are about; empty: they may be about any
	Now      func() time.Time    // for elapsed time only
	Panicked rescue.Told
}

// Follower lets the marks follow the ledger, and says what they tell of a device. It is safe
// for concurrent use.
type Follower struct {
	config Config
	belief belief
	looks  coalesce.Calls[struct{}, string, Sight]

	turn sync.Mutex // of those who follow
	last int64      // how far the news were told; guarded by turn
	come int64      // how far all marks have come at least; guarded by turn
}

// Bounds of a call that reads marks.
const (
	lookLanes = 2
	lookFill  = 32
	lookMost  = 256
)

// New returns a Follower.
func New(config Config) *Follower {
	f := &Follower{config: config}
	f.looks = coalesce.Calls[struct{}, string, Sight]{
		Call: func(ctx context.Context, _ struct{}, devices []string) ([]Sight, error) {
			return config.Cache.Look(ctx, devices), nil
		},
		Alone: func(error) bool { return false }, Lanes: lookLanes, Fill: lookFill, Most: lookMost, Panicked: config.Panicked,
	}
	return f
}

// Answer is what the marks tell of a device.
type Answer struct {
	Version  string    // of its mark, for Clear; empty: it has none
	Read     bool      // Redis answered
	Believed bool      // that it has none would say that it has no open task
	Now      time.Time // by the clock of the ledger, if Believed
}

// Idle says that the device has no open task.
func (a Answer) Idle() bool { return a.Believed && a.Version == "" }

// Look asks for a device.
func (f *Follower) Look(ctx context.Context, device string) Answer {
	sight, err := f.looks.Do(ctx, struct{}{}, device)
	if err != nil {
		return Answer{}
	}
	return f.answer(sight)
}

func (f *Follower) answer(sight Sight) Answer {
	need, now, ok := f.belief.needed(f.config.Now())
	return Answer{Version: sight.Version, Read: sight.Upto != unread, Believed: ok && sight.Upto >= need, Now: now}
}

// Lacks says whether the mark of a device is missing that must be there: it has work, as was
// read before from the ledger.
func (f *Follower) Lacks(ctx context.Context, device string) (bool, error) {
	read, err := f.config.Ledger.NewsSince(ctx, math.MaxInt64)
	if err != nil {
		return false, fmt.Errorf("reading the news: %w", err)
	}
	sight, err := f.looks.Do(ctx, struct{}{}, device)
	return err == nil && sight.Version == "" && sight.Upto >= read.Newest, err
}

// Clear takes away the mark that was seen before it was looked whether the device has work.
func (f *Follower) Clear(ctx context.Context, device, version string) error {
	_, err := f.config.Cache.Unmark(ctx, device, version)
	return err //nolint:wrapcheck // the cache's own
}

// Bounds of what follows a commit of this process.
const (
	wroteWait  = time.Second // whoever committed waits so long, so that no other replica misses the marks
	wroteLimit = time.Minute
)

// Wrote lets the marks follow news that this process committed, and waits a moment for that.
// Until they have, no device whose mark may be missing is said to be idle here.
func (f *Follower) Wrote(ctx context.Context, newest int64) {
	f.belief.wrote(newest)
	done := make(chan struct{})
	f.config.Panicked.Go("following news", func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wroteLimit)
		defer cancel()
		_ = f.followTo(ctx, newest) // the pass does, and reports, what fails here
	})
	wait := time.NewTimer(wroteWait)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	case <-ctx.Done():
	}
}

func (f *Follower) followTo(ctx context.Context, newest int64) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	if f.come >= newest { // by another one, meanwhile
		return nil
	}
	return f.follow(ctx)
}

// Follow lets the marks follow the news of all replicas.
func (f *Follower) Follow(ctx context.Context) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	return f.follow(ctx)
}

func (f *Follower) follow(ctx context.Context) error {
	for {
		// Before the news: marks that have come further are those of another ledger.
		come, redisErr := f.config.Cache.Upto(ctx)
		read, err := f.read(ctx, come)
		if err := errors.Join(err, redisErr); err != nil {
			return err
		}
		to := read.Newest
		if n := len(read.Rows); n > 0 {
			to = read.Rows[n-1].ID // there may be others
		}
		if err := f.update(ctx, come, read, to); err != nil || to == read.Newest {
			return err
		}
	}
}

// read reads the news that the marks or this process lack.
func (f *Follower) read(ctx context.Context, come [parts]int64) (read store.NewsRead, err error) {
	began, since := f.config.Now(), cmp.Or(f.last, math.MaxInt64) // at first nothing was told to anybody
	for _, c := range come {
		if c != unknown {
			since = min(since, c)
		}
	}
	if read, err = f.config.Ledger.NewsSince(ctx, since); err != nil {
		return read, fmt.Errorf("reading the news: %w", err)
	}
	f.belief.read(reading{began: began, newest: read.Newest, ledger: read.Now})
	f.tell(read)
	return read, nil
}

// tell tells which devices the news are about that were not told yet.
func (f *Follower) tell(read store.NewsRead) {
	if f.last < read.Oldest-1 || f.last > read.Newest { // some are gone, or it is another ledger
		f.config.Told("")
	}
	for _, n := range read.Rows {
		if n.ID > f.last && n.Batch == 0 {
			f.config.Told(n.Device)
		}
	}
	f.last = read.Newest
	if n := len(read.Rows); n > 0 {
		f.last = read.Rows[n-1].ID
	}
}
