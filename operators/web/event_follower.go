package web

import "context"

const (
	eventPageSize    = 1000
	maxEventsPerRead = 10 * eventPageSize // maximum number of events of one read; if there are more, all pages count as changed
)

// eventFollower follows the log of events. It reads the events only while pages are open. Ids are assigned
// before the commit, so a lower id can appear after a higher one was read. Therefore readNewEvents reads all events
// after completeID again, and skips the events that it has already returned.
type eventFollower struct {
	log         eventLog
	hasBegun    bool
	completeID  int64              // no event with an id up to this one can appear any more
	position    eventPosition      // position in the log up to which all events will be complete; then it becomes completeID
	hasPosition bool               // the position is set
	countedID   int64              // the charts count the events up to this id
	returned    map[int64]struct{} // ids above completeID that read has returned
}

// readNewEvents returns the events since the previous call, or no events if includeEvents is false. If allPagesChanged is true, all pages
// count as changed. This happens at the first call, which only stores the end of the log, and if there are too many events to return.
// readNewEvents increases completeID to the next position in the log when all transactions that could add an event before this position
// have ended.
func (n *eventFollower) readNewEvents(ctx context.Context, includeEvents bool) (events []event, allPagesChanged bool, err error) {
	if !includeEvents {
		clear(n.returned)
	}
	if !n.hasBegun {
		mark, err := n.log.ReadEventPosition(ctx, -1)
		if err != nil {
			return nil, false, err
		}
		n.completeID, n.countedID, n.hasBegun, n.returned = mark.Last, mark.Last, true, map[int64]struct{}{}
		return nil, true, nil
	}
	if !n.hasPosition {
		if n.position, err = n.log.ReadEventPosition(ctx, n.completeID); err != nil || n.position.Last == n.completeID {
			return nil, false, err
		}
		n.hasPosition = true
	}
	isComplete, err := n.log.EventsComplete(ctx, n.position) // asked before readUnreturnedEvents, so that readUnreturnedEvents finds all events up to a complete position
	if err != nil {
		return nil, false, err
	}
	if includeEvents {
		if events, allPagesChanged, err = n.readUnreturnedEvents(ctx); err != nil {
			return nil, false, err
		}
	}
	if isComplete {
		n.markCompleteUpToPosition()
	}
	return events, allPagesChanged, nil
}

// readUnreturnedEvents returns the events after completeID that were not returned yet.
func (n *eventFollower) readUnreturnedEvents(ctx context.Context) (events []event, allPagesChanged bool, err error) {
	after := n.completeID
	for range maxEventsPerRead / eventPageSize {
		list, err := n.log.Events(ctx, eventFilter{After: after, Limit: eventPageSize})
		if err != nil {
			return nil, false, err
		}
		for _, e := range list {
			if _, known := n.returned[e.ID]; !known {
				n.returned[e.ID] = struct{}{}
				events = append(events, e)
			}
		}
		if len(list) < eventPageSize {
			return events, false, nil
		}
		after = list[len(list)-1].ID
	}
	return events, true, nil
}

// markCompleteUpToPosition sets completeID to n.position. The caller must know that all events up to this position are complete.
func (n *eventFollower) markCompleteUpToPosition() {
	n.completeID, n.hasPosition = n.position.Last, false
	for id := range n.returned {
		if id <= n.completeID {
			delete(n.returned, id)
		}
	}
}
