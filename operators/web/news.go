package web

import "context"

const (
	newsPageSize  = 1000
	maxNewsEvents = 10 * newsPageSize // maximum number of events of one read; if there are more, all pages count as changed
)

// eventFollower follows the log of events. It reads the events only while pages are open. Ids are assigned
// before the commit, so a lower id can appear after a higher one was read. Therefore news rereads all
// events after the last id known to be complete, and skips the events that it has already returned.
type eventFollower struct {
	log        eventLog
	hasBegun   bool
	completeID int64
	mark       eventMark
	hasMark    bool
	countedID  int64 // the charts include the events up to this id
	returned   map[int64]struct{}
}

// read returns the events since the previous call. If all is true, all pages count as changed: it is
// the first call, or there were too many events to return.
func (n *eventFollower) read(ctx context.Context) (events []event, allChanged bool, err error) {
	return n.advance(ctx, true)
}

// skipEvents moves on without reading events. A later read returns the events that were not complete yet.
func (n *eventFollower) skipEvents(ctx context.Context) error {
	clear(n.returned)
	_, _, err := n.advance(ctx, false)
	return err
}

func (n *eventFollower) advance(ctx context.Context, withEvents bool) (events []event, allChanged bool, err error) {
	if !n.hasBegun {
		mark, err := n.log.ReadEventPosition(ctx, -1)
		if err != nil {
			return nil, false, err
		}
		n.completeID, n.countedID, n.hasBegun, n.returned = mark.Last, mark.Last, true, map[int64]struct{}{}
		return nil, true, nil
	}
	if !n.hasMark {
		if n.mark, err = n.log.ReadEventPosition(ctx, n.completeID); err != nil || n.mark.Last == n.completeID {
			return nil, false, err
		}
		n.hasMark = true
	}
	settled, err := n.log.EventsComplete(ctx, n.mark) // asked before reading, so that the read below finds all events up to a complete mark
	if err != nil {
		return nil, false, err
	}
	if withEvents {
		if events, allChanged, err = n.readUnseen(ctx); err != nil {
			return nil, false, err
		}
	}
	if settled {
		n.advanceToMark()
	}
	return events, allChanged, nil
}

func (n *eventFollower) readUnseen(ctx context.Context) (events []event, allChanged bool, err error) {
	after := n.completeID
	for range maxNewsEvents / newsPageSize {
		list, err := n.log.Events(ctx, eventFilter{After: after, Limit: newsPageSize})
		if err != nil {
			return nil, false, err
		}
		for _, e := range list {
			if _, known := n.returned[e.ID]; !known {
				n.returned[e.ID] = struct{}{}
				events = append(events, e)
			}
		}
		if len(list) < newsPageSize {
			return events, false, nil
		}
		after = list[len(list)-1].ID
	}
	return events, true, nil
}

// advanceToMark moves to the mark, up to which all events are complete.
func (n *eventFollower) advanceToMark() {
	n.completeID, n.hasMark = n.mark.Last, false
	for id := range n.returned {
		if id <= n.completeID {
			delete(n.returned, id)
		}
	}
}
