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

// Ledger is the part of the store that the marks follow. *store.Store implements it.
type Ledger interface {
	NewsSince(ctx context.Context, id int64) (store.NewsRead, error)
	EachOpen(ctx context.Context, batch int64, each func(device string)) error
}

// Cache stores the marks. *Hashes implements it.
type Cache interface {
	Look(ctx context.Context, devices []string) []Sight
	Upto(ctx context.Context) ([parts]int64, error)
	Mark(ctx context.Context, from, to int64, all []Devices) error
	Unmark(ctx context.Context, device, version string) (bool, error)
}

// Config configures a Follower.
type Config struct {
	Ledger   Ledger
	Cache    Cache
	Told     func(device string) // is called for each device with news; if device is empty, there may be news of any device
	Now      func() time.Time    // for elapsed time only
	Panicked rescue.Told
}

// Follower updates the marks from the news of the ledger, and reads the mark of a device. It is safe for
// concurrent use.
type Follower struct {
	config Config
	belief belief
	looks  coalesce.Calls[struct{}, string, Sight]

	turn sync.Mutex // held while the marks are updated
	last int64      // id of the last news that Told was called for; guarded by turn
	come int64      // minimum position that all marks have reached; guarded by turn
}

// The limits of the coalesced calls that read marks.
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

// Answer is the result of reading the mark of a device.
type Answer struct {
	Version  string    // version of the mark, for Clear; empty if the device has no mark
	Read     bool      // true if Redis answered
	Believed bool      // true if a missing mark can be trusted
	Now      time.Time // the time of the ledger, if Believed
}

// Idle reports whether the device has no open task.
func (a Answer) Idle() bool { return a.Believed && a.Version == "" }

// Look reads the mark of a device.
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

// Lacks reports whether the mark of a device is missing although the device has work. The caller must have
// read from the ledger that it has work.
func (f *Follower) Lacks(ctx context.Context, device string) (bool, error) {
	read, err := f.config.Ledger.NewsSince(ctx, math.MaxInt64)
	if err != nil {
		return false, fmt.Errorf("reading the news: %w", err)
	}
	sight, err := f.looks.Do(ctx, struct{}{}, device)
	return err == nil && sight.Version == "" && sight.Upto >= read.Newest, err
}

// Clear deletes the mark of a device if it still has this version. The caller must read the version before it
// reads from the ledger that the device has no work.
func (f *Follower) Clear(ctx context.Context, device, version string) error {
	_, err := f.config.Cache.Unmark(ctx, device, version)
	return err //nolint:wrapcheck // the cache's own
}

// The limits of the update that follows a commit of this process.
const (
	wroteWait  = time.Second // time that the committing request waits for its marks, so that no other replica misses them
	wroteLimit = time.Minute
)

// Wrote starts to update the marks with the news that this process committed, and waits at most wroteWait for
// that. Until the marks include these news, this process treats no device without a mark as idle.
func (f *Follower) Wrote(ctx context.Context, newest int64) {
	f.belief.wrote(newest)
	done := make(chan struct{})
	f.config.Panicked.Go("following news", func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wroteLimit)
		defer cancel()
		_ = f.followTo(ctx, newest) // the next pass retries and reports what fails here
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
	if f.come >= newest { // another goroutine has followed to this position
		return nil
	}
	return f.follow(ctx)
}

// Follow updates the marks with the news that all replicas committed.
func (f *Follower) Follow(ctx context.Context) error {
	f.turn.Lock()
	defer f.turn.Unlock()
	return f.follow(ctx)
}

func (f *Follower) follow(ctx context.Context) error {
	for {
		// Read the positions before the news. Then a position above the newest news proves that the marks
		// belong to another ledger.
		come, redisErr := f.config.Cache.Upto(ctx)
		read, err := f.read(ctx, come)
		if err := errors.Join(err, redisErr); err != nil {
			return err
		}
		to := read.Newest
		if n := len(read.Rows); n > 0 {
			to = read.Rows[n-1].ID // there may be more rows
		}
		if err := f.update(ctx, come, read, to); err != nil || to == read.Newest {
			return err
		}
	}
}

// read reads the news after the lowest known position of the marks and of this process.
func (f *Follower) read(ctx context.Context, come [parts]int64) (read store.NewsRead, err error) {
	began, since := f.config.Now(), cmp.Or(f.last, math.MaxInt64) // if f.last is 0, Told was not called for any news yet
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

// tell calls Told for the devices of news that this process has not handled before.
func (f *Follower) tell(read store.NewsRead) {
	if f.last < read.Oldest-1 || f.last > read.Newest { // some news were deleted, or this is another ledger
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
