package web

import "context"

const (
	newsPage = 1000
	newsMost = 10 * newsPage // of one reading; beyond, everything counts as changed
)

// news follows the log of events, and reads it while pages are open. Ids are given before
// their commit, so an event may appear below one that was read: all above the last mark
// that has settled is read again, and what was seen is left out.
type news struct {
	log     eventLog
	begun   bool
	settled int64
	mark    eventMark
	marked  bool
	counted int64 // for the charts, up to this id
	seen    map[int64]struct{}
}

// read returns the events since the reading before; all says that there were
// too many to look at each.
func (n *news) read(ctx context.Context) (events []event, all bool, err error) {
	return n.follow(ctx, true)
}

// skip goes on without reading. Events that have not settled yet are news to a later reading.
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
	settled, err := n.log.EventsSettled(ctx, n.mark) // before reading: what is settled by now is read below
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

// settle moves on to the mark.
func (n *news) settle() {
	n.settled, n.marked = n.mark.Last, false
	for id := range n.seen {
		if id <= n.settled {
			delete(n.seen, id)
		}
	}
}
