package web

import "context"

const (
	newsPage = 1000
	newsMost = 10 * newsPage // maximum number of events of one read; if there are more, all pages count as changed
)

// news follows the log of events. It reads the events only while pages are open. Ids are assigned
// before the commit, so a lower id can appear after a higher one was read. Therefore news rereads all
// events after the last id known to be complete, and skips the events that it has already returned.
type news struct {
	log     eventLog
	begun   bool
	settled int64
	mark    eventMark
	marked  bool
	counted int64 // the charts include the events up to this id
	seen    map[int64]struct{}
}

// read returns the events since the previous call. If all is true, all pages count as changed: it is
// the first call, or there were too many events to return.
func (n *news) read(ctx context.Context) (events []event, all bool, err error) {
	return n.follow(ctx, true)
}

// skip moves on without reading events. A later read returns the events that were not complete yet.
func (n *news) skip(ctx context.Context) error {
	clear(n.seen)
	_, _, err := n.follow(ctx, false)
	return err
}

func (n *news) follow(ctx context.Context, reading bool) (events []event, all bool, err error) {
	if !n.begun {
		mark, err := n.log.MarkEvents(ctx, -1)
		if err != nil {
			return nil, false, err
		}
		n.settled, n.counted, n.begun, n.seen = mark.Last, mark.Last, true, map[int64]struct{}{}
		return nil, true, nil
	}
	if !n.marked {
		if n.mark, err = n.log.MarkEvents(ctx, n.settled); err != nil || n.mark.Last == n.settled {
			return nil, false, err
		}
		n.marked = true
	}
	settled, err := n.log.EventsSettled(ctx, n.mark) // asked before reading, so that the read below finds all events up to a complete mark
	if err != nil {
		return nil, false, err
	}
	if reading {
		if events, all, err = n.unseen(ctx); err != nil {
			return nil, false, err
		}
	}
	if settled {
		n.settle()
	}
	return events, all, nil
}

func (n *news) unseen(ctx context.Context) (events []event, all bool, err error) {
	after := n.settled
	for range newsMost / newsPage {
		list, err := n.log.Events(ctx, eventFilter{After: after, Limit: newsPage})
		if err != nil {
			return nil, false, err
		}
		for _, e := range list {
			if _, known := n.seen[e.ID]; !known {
				n.seen[e.ID] = struct{}{}
				events = append(events, e)
			}
		}
		if len(list) < newsPage {
			return events, false, nil
		}
		after = list[len(list)-1].ID
	}
	return events, true, nil
}

// settle moves to the mark, up to which all events are complete.
func (n *news) settle() {
	n.settled, n.marked = n.mark.Last, false
	for id := range n.seen {
		if id <= n.settled {
			delete(n.seen, id)
		}
	}
}
