package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math"
	"strconv"
	"time"
)

// EventSeal is the seal of a block, the events with After < id <= Last. Its hash covers the hash of the previous seal, every column of the
// events of the block, and the other fields of the seal. The first seal is the start of the chain. It has no events, or its events were deleted.
type EventSeal struct {
	After, Last int64
	Events      int       // number of events of the block when it was sealed; 0 for the first seal
	At          time.Time // time of the sealing, in whole ms
	Hash        string    // SHA-256 in hexadecimal digits
}

// CheckedSeal is a seal, with the number and the hash of the events that its block has now. If At is zero, the events are not sealed yet.
type CheckedSeal struct {
	EventSeal
	Found    int    // number of events after the previous seal, up to Last. Counting stops at Events + 1, or at searchLimit if the events are not sealed
	Computed string // the hash of the events that were found; it equals Hash if nothing was changed
}

const (
	sealEvery   = time.Minute // a block with fewer events than the limit is sealed if the seal before it is at least this old
	sealColumns = `after, last, events, at, hash`
)

func sealScanDest(seal *EventSeal) (scanDest []any) {
	return []any{&seal.After, &seal.Last, &seal.Events, &seal.At, &seal.Hash}
}

// SealEvents seals the next block: limit events after the last seal, up to the id lastEvent. If there are fewer events, it seals them only
// if the last seal is at least a minute old. All events up to lastEvent must be complete (EventsComplete). It returns the number of events
// sealed. Replicas may call it concurrently.
func (s events) SealEvents(ctx context.Context, lastEvent int64, limit int) (sealed int, err error) {
	var previous EventSeal
	var now time.Time
	if err := s.readSession().scanRow(ctx, append(sealScanDest(&previous), &now), `SELECT `+sealColumns+`, {now} FROM event_seals ORDER BY last DESC LIMIT 1`); err != nil {
		return 0, fmt.Errorf("reading the last seal of the events: %w", err)
	}
	left := lastEvent - previous.Last
	if left <= 0 || left < int64(limit) && now.Sub(previous.At) < sealEvery {
		return 0, nil
	}
	b, err := s.readSession().readBlock(ctx, previous, lastEvent, limit)
	if err != nil || b.events == 0 {
		return 0, err
	}
	seal := EventSeal{After: previous.Last, Last: b.last, Events: b.events, At: now.Truncate(time.Millisecond)}
	err = s.write(ctx, func(tx session) error {
		// If another replica has sealed this block, the row of its seal has the same value in the unique column "after". Retention may have deleted
		// that row, but never the last row.
		_, err := tx.exec(ctx, `
			INSERT INTO event_seals (`+sealColumns+`) SELECT $1, $2, $3, {epoch} + $4 * {ms}, $5
			WHERE NOT EXISTS (SELECT 1 FROM event_seals WHERE last > $1) ON CONFLICT DO NOTHING`,
			seal.After, seal.Last, seal.Events, seal.At.UnixMilli(), b.hashForSeal(seal))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sealing the events after %d: %w", seal.After, err)
	}
	return b.events, nil
}

// CheckSeals checks at most limit seals with Last > afterEvent against the events. If afterEvent is -1, it begins at the first seal. It
// stops early after it has read 50,000 events. If more is false, there are no later seals. Then the last entry of seals stands for the
// events that are not sealed yet, if there are any.
func (s events) CheckSeals(ctx context.Context, afterEvent int64, limit int) (seals []CheckedSeal, more bool, err error) {
	err = s.InOneSnapshot(ctx, func(ctx context.Context, _ Snapshot) error { // retention deletes seals and events together
		seals, more, err = s.readSession().checkSeals(ctx, afterEvent, limit)
		return err
	})
	return seals, more, err
}

func (s session) checkSeals(ctx context.Context, afterEvent int64, limit int) (checked []CheckedSeal, more bool, err error) {
	previous, err := queryOne(ctx, s, sealScanDest, `SELECT `+sealColumns+` FROM event_seals WHERE last <= $1 ORDER BY last DESC LIMIT 1`, afterEvent)
	isFirst := errors.Is(err, ErrNotFound)
	if isFirst {
		previous.Last = math.MinInt64 // also finds events that were inserted before all others
	} else if err != nil {
		return nil, false, fmt.Errorf("reading a seal of the events: %w", err)
	}
	seals, err := collect(ctx, s, sealScanDest, `SELECT `+sealColumns+` FROM event_seals WHERE last > $1 ORDER BY last LIMIT $2`, afterEvent, limit)
	if err != nil {
		return nil, false, fmt.Errorf("reading the seals of the events: %w", err)
	}
	read := 0
	for _, seal := range seals {
		if read >= searchLimit {
			return checked, true, nil
		}
		b, err := s.readBlock(ctx, previous, seal.Last, seal.Events+1)
		if err != nil {
			return nil, false, err
		}
		now := CheckedSeal{seal, b.events, b.hashForSeal(seal)}
		if isFirst && b.events == 0 {
			now.Computed = now.Hash
		}
		checked, read = append(checked, now), read+b.events
		previous, isFirst = seal, false
	}
	if len(seals) == limit {
		return checked, true, nil
	}
	rest := CheckedSeal{EventSeal: EventSeal{After: previous.Last}}
	err = s.scanRow(ctx, []any{&rest.Found, &rest.Last}, `SELECT count(*), coalesce(max(id), 0) FROM (SELECT id FROM events WHERE id > $1 ORDER BY id LIMIT $2) AS unsealed`, previous.Last, searchLimit)
	if rest.Found > 0 {
		checked = append(checked, rest)
	}
	return checked, false, err
}

// eventBlock holds the data of a block that the hash of its seal needs.
type eventBlock struct {
	hash   hash.Hash
	events int
	last   int64 // id of the last event; 0 if there are no events
}

// readBlock reads at most limit events after the last event of the seal previous, up to the id lastEvent.
func (s session) readBlock(ctx context.Context, previous EventSeal, lastEvent int64, limit int) (_ eventBlock, err error) {
	defer wrapError(&err, "reading the events after %d", previous.Last)
	b := eventBlock{hash: sha256.New()}
	_, _ = fmt.Fprintln(b.hash, previous.Hash)
	var line []byte
	err = forEach(ctx, s, eventScanDest, func(e Event) bool {
		line = e.appendAuditLine(line[:0])
		_, _ = b.hash.Write(line)
		b.events, b.last = b.events+1, e.ID
		return true
	}, `SELECT `+eventColumns+` FROM events e WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id LIMIT $3`, previous.Last, lastEvent, limit)
	return b, err
}

// hashForSeal returns the hash that seal must have if nothing was changed. A block can be hashed only once.
func (b eventBlock) hashForSeal(seal EventSeal) string {
	_, _ = fmt.Fprintln(b.hash, seal.After, seal.Last, seal.Events, seal.At.UnixMicro())
	return hex.EncodeToString(b.hash.Sum(nil))
}

// appendAuditLine appends every column of the event to line. The length before each text makes the lines of different events differ.
func (e Event) appendAuditLine(line []byte) []byte {
	for _, number := range [...]int64{e.ID, e.At.UnixMicro(), e.Batch, e.Task, e.Token} {
		line = append(strconv.AppendInt(line, number, 10), ' ')
	}
	for _, text := range [...]string{e.Kind, e.Actor, string(e.ActorKind), e.Pool, e.Device, e.Detail} {
		line = append(strconv.AppendInt(line, int64(len(text)), 10), ':')
		line = append(line, text...)
	}
	return append(line, '\n')
}

// oldBlocksSQL selects the event id up to which events are deleted. It takes blocks that were sealed more than $1 ms ago, oldest first,
// until they have at least $2 events together. It selects the id of the last event of these blocks. If there is no such block, it selects
// 0.
const oldBlocksSQL = `
	SELECT coalesce(max(last), 0) FROM (
		SELECT last, at, sum(events) OVER (ORDER BY last) - events AS before FROM event_seals WHERE events > 0 ORDER BY last LIMIT $2) AS oldest
	WHERE before < $2 AND at < (SELECT {now}) - $1 * {ms}`

// deleteOldEvents deletes, oldest first, blocks that were sealed more than keepFor ago, until it has deleted limit events. The last seal of a
// deleted block stays as the start of the chain.
func (s events) deleteOldEvents(ctx context.Context, keepFor time.Duration, limit int) (deleted int64, err error) {
	err = s.write(ctx, func(tx session) error {
		last, err := queryOne(ctx, tx, singleColumn[int64], oldBlocksSQL, keepFor.Milliseconds(), limit)
		if deleted = 0; err != nil || last == 0 {
			return err
		}
		if _, err := tx.exec(ctx, `DELETE FROM event_seals WHERE last < $1`, last); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `UPDATE event_seals SET events = 0 WHERE last = $1`, last); err != nil {
			return err
		}
		deleted, err = tx.exec(ctx, `DELETE FROM events WHERE id <= $1`, last)
		return err
	})
	return deleted, err
}
