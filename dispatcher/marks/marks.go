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

// Ledger reads the news (the change log) and the devices with open tasks. *store.Store implements it.
type Ledger interface {
	NewsSince(ctx context.Context, afterID int64) (store.NewsPage, error)
	ForEachOpenDevice(ctx context.Context, batch int64, each func(device string)) error
}

// Cache stores the marks (which devices have work) in Redis. *Hashes implements it.
type Cache interface {
	ReadMarks(ctx context.Context, devices []string) []MarkReading
	ReadPositions(ctx context.Context) ([hashCount]int64, error)
	MarkDevices(ctx context.Context, from, to int64, byHash []HashDevices) error
	DeleteMark(ctx context.Context, device, version string) (deleted bool, err error)
	RecordWaits(ctx context.Context, waits []DeviceWait) error
	EndWaits(ctx context.Context, devices []string) error
}

// Config configures a Follower.
type Config struct {
	Ledger   Ledger
	Cache    Cache
	OnNews   func(device string) // is called with the device of each row of news that names one; if device is empty, there may be news of any device
	Now      func() time.Time    // for elapsed time only
	Panicked rescue.PanicHandler
}

// Follower updates the marks from the news of the ledger, and reads the marks of devices. It is safe for concurrent use.
type Follower struct {
	config    Config
	trust     trustState
	readCalls coalesce.Calls[struct{}, string, MarkReading]
	waitCalls coalesce.Calls[struct{}, DeviceWait, struct{}]

	updateMu    sync.Mutex // held while the marks are updated
	lastNews    int64      // id up to which handleNews has handled the news, or 0; guarded by updateMu
	minPosition int64      // position in the news that all hashes have reached; guarded by updateMu
}

const (
	maxConcurrentReads = 2   // maximum number of concurrent calls
	secondReadFill     = 32  // if this number of devices wait, a second call begins although one is in progress
	maxReadDevices     = 256 // maximum number of devices in one call
)

// New returns a Follower that trusts no mark before its first read of the news.
func New(config Config) *Follower {
	f := &Follower{config: config}
	f.readCalls = coalesce.Calls[struct{}, string, MarkReading]{
		Call: func(ctx context.Context, _ struct{}, devices []string) ([]MarkReading, error) {
			return config.Cache.ReadMarks(ctx, devices), nil
		},
		MayRetryAlone: func(error) bool { return false }, MaxConcurrent: maxConcurrentReads, MinWaiting: secondReadFill, MaxSize: maxReadDevices, OnPanic: config.Panicked,
	}
	f.waitCalls = coalesce.Calls[struct{}, DeviceWait, struct{}]{
		Call: func(ctx context.Context, _ struct{}, waits []DeviceWait) ([]struct{}, error) {
			return make([]struct{}, len(waits)), config.Cache.RecordWaits(ctx, waits)
		},
		MayRetryAlone: func(error) bool { return false }, MaxConcurrent: maxConcurrentReads, MinWaiting: secondReadFill, MaxSize: maxReadDevices, OnPanic: config.Panicked,
	}
	return f
}

// DeviceMark is the mark of a device: the field in Redis which says that the device has work.
type DeviceMark struct {
	Version string    // version of the mark, for ClearMark; empty if the device has no mark
	Read    bool      // true if Redis answered
	Trusted bool      // if true and Version is empty, the device has no open task
	Now     time.Time // the time of the ledger, if Trusted

	// Wait is the wait that the mark records. It has no pool if the mark records no valid wait. A valid wait means that the device has tasks
	// only in this pool, and that one of them could start if it got a slot.
	Wait Wait
	// Position is the position up to which this replica has handled the news. If the ledger is read after that and shows that the device
	// waits, the wait is recorded with this position.
	Position int64
}

// IsIdle reports whether it is known that the device has no open task.
func (a DeviceMark) IsIdle() bool { return a.Trusted && a.Version == "" }

// ReadMark reads the mark of a device from Redis. If Redis does not answer, the field Read of the result is false.
func (f *Follower) ReadMark(ctx context.Context, device string) DeviceMark {
	reading, err := f.readCalls.Do(ctx, struct{}{}, device)
	if err != nil {
		return DeviceMark{}
	}
	return f.newDeviceMark(reading)
}

func (f *Follower) newDeviceMark(reading MarkReading) DeviceMark {
	need, now, ok := f.trust.requiredPosition(f.config.Now())
	mark := DeviceMark{
		Version: reading.Version, Read: reading.Position != unreadHash, Trusted: ok && reading.Position >= need, Now: now, Position: f.trust.handledNewsID(),
	}
	if w := reading.Wait; mark.Trusted && w.Pool != "" && f.trust.isWaitNewerThanPoolNews(w) && (w.Until.IsZero() || now.Before(w.Until)) {
		mark.Wait = w
	}
	return mark
}

// LedgerTime returns the current time of the ledger. followsNews is true if this replica has read the news in the last seconds, and has handled
// all news that it has read or committed.
func (f *Follower) LedgerTime() (now time.Time, followsNews bool) {
	_, now, isFresh := f.trust.requiredPosition(f.config.Now())
	return now, isFresh && f.trust.hasHandledNews()
}

// RecordWait adds wait to the mark of a device, if the mark still has this version. Read the version before you read the device in the
// ledger.
func (f *Follower) RecordWait(ctx context.Context, device, markVersion string, wait Wait) error {
	_, err := f.waitCalls.Do(ctx, struct{}{}, DeviceWait{Device: device, Version: markVersion, Wait: wait})
	return err
}

// EndWaits ends the waits of devices that were granted tasks. Call it after the commit and before the devices are answered. Then a report whose
// device was read before the grant can no longer record a wait.
func (f *Follower) EndWaits(ctx context.Context, devices []string) error {
	return f.config.Cache.EndWaits(ctx, devices)
}

// IsWaitValid reads the news and the mark of a device again, and reports whether wait is still valid.
func (f *Follower) IsWaitValid(ctx context.Context, device string, wait Wait) (isValid bool, err error) {
	if err := f.FollowNews(ctx); err != nil {
		return false, err
	}
	return f.ReadMark(ctx, device).Wait == wait, nil
}

// IsMarkMissing reports whether the device has no mark, although its hash includes all news that the ledger has now.
func (f *Follower) IsMarkMissing(ctx context.Context, device string) (isMissing bool, err error) {
	read, err := f.config.Ledger.NewsSince(ctx, math.MaxInt64) // only read.Newest is needed, and no rows
	if err != nil {
		return false, fmt.Errorf("reading the news: %w", err)
	}
	reading, err := f.readCalls.Do(ctx, struct{}{}, device)
	return err == nil && reading.Version == "" && reading.Position >= read.Newest, err
}

// ClearMark deletes the mark of a device if the mark still has this version. Read the version before you read in the ledger that the device has
// no work.
func (f *Follower) ClearMark(ctx context.Context, device, markVersion string) error {
	_, err := f.config.Cache.DeleteMark(ctx, device, markVersion)
	return err
}

// These limits apply to FollowCommit, which updates the marks after a commit of this process.
const (
	wroteWait  = time.Second // time that the committing request waits for its marks, so that no other replica misses them
	wroteLimit = time.Minute // time limit of the update, which continues in the background after wroteWait
)

// FollowCommit updates the marks with the news up to the id newestNewsID, which this process has committed. It waits at most wroteWait for the
// update. Until the marks include these news, this process does not trust missing marks.
func (f *Follower) FollowCommit(ctx context.Context, newestNewsID int64) {
	f.trust.recordOwnCommit(newestNewsID)
	done := make(chan struct{})
	f.config.Panicked.Go("following news", func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wroteLimit)
		defer cancel()
		_ = f.followNewsUpTo(ctx, newestNewsID) // the next pass retries and reports what fails here
	})
	wait := time.NewTimer(wroteWait)
	defer wait.Stop()
	select {
	case <-done:
	case <-wait.C:
	case <-ctx.Done():
	}
}

// followNewsUpTo updates the marks, so that they include the news with the id newestNewsID.
func (f *Follower) followNewsUpTo(ctx context.Context, newestNewsID int64) error {
	f.updateMu.Lock()
	defer f.updateMu.Unlock()
	if f.minPosition >= newestNewsID { // another goroutine has followed to this position
		return nil
	}
	return f.readAndHandleNews(ctx)
}

// FollowNews updates the marks with the news (rows of the change log) that all replicas have committed.
func (f *Follower) FollowNews(ctx context.Context) error {
	f.updateMu.Lock()
	defer f.updateMu.Unlock()
	return f.readAndHandleNews(ctx)
}

// readAndHandleNews does the work of FollowNews. The caller must hold updateMu.
func (f *Follower) readAndHandleNews(ctx context.Context) error {
	for {
		// A position is the id of the last news that the marks contain. It is read before the news. So a position that is higher than the id
		// of the newest news proves that the marks were written for another ledger.
		positions, redisErr := f.config.Cache.ReadPositions(ctx)
		read, err := f.readNews(ctx, positions)
		if err := errors.Join(err, redisErr); err != nil {
			return err
		}
		to := read.Newest
		if n := len(read.Rows); n > 0 {
			to = read.Rows[n-1].ID // the page may end before read.Newest
		}
		if err := f.updateMarks(ctx, positions, read, to); err != nil || to == read.Newest {
			return err
		}
	}
}

// readNews reads the news after the lowest position that a hash or this process has reached. A hash that does not exist is ignored, because
// it is rebuilt.
func (f *Follower) readNews(ctx context.Context, positionByHash [hashCount]int64) (page store.NewsPage, err error) {
	began, since := f.config.Now(), cmp.Or(f.lastNews, math.MaxInt64) // if f.lastNews is 0, this process has not handled any news yet
	for _, c := range positionByHash {
		if c != missingHash {
			since = min(since, c)
		}
	}
	if page, err = f.config.Ledger.NewsSince(ctx, since); err != nil {
		return page, fmt.Errorf("reading the news: %w", err)
	}
	f.trust.addReading(newsReading{began: began, newest: page.Newest, ledger: page.Now})
	f.handleNews(page)
	return page, nil
}

// handleNews calls OnNews with the device of each row that names one and that this process has not handled before. If rows are missing, or if
// the rows come from another ledger, it calls OnNews with an empty name. It also adds the news of pools to trust.
func (f *Follower) handleNews(page store.NewsPage) {
	isGap := f.lastNews < page.Oldest-1 || f.lastNews > page.Newest // some news were deleted, or this is another ledger
	if isGap {
		f.config.OnNews("")
	}
	for _, n := range page.Rows {
		if n.ID > f.lastNews && n.Batch == 0 && !n.ChangesWaitsOnly() {
			f.config.OnNews(n.Device)
		}
	}
	f.lastNews = page.Newest
	if n := len(page.Rows); n > 0 {
		f.lastNews = page.Rows[n-1].ID
	}
	f.trust.addPoolNews(page.Rows, f.lastNews, isGap)
}
