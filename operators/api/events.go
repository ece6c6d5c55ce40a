package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type eventStore interface {
	Events(ctx context.Context, filter store.EventFilter) ([]store.Event, error)
	Between(ctx context.Context, filter store.EventFilter) (store.EventFilter, error)
	EventStretch(ctx context.Context, filter store.EventFilter) (store.Stretch, error)
	MarkEvents(ctx context.Context, sent int64) (store.EventMark, error)
	EventsSettled(ctx context.Context, mark store.EventMark) (bool, error)
}

// events has the operations on the log.
type events struct {
	ledger   eventStore
	auth     *authenticator
	stopping *atomic.Bool
}

type eventQuery struct {
	Page
	operators.EventFilter
	Order string `query:"order" enum:"newest,oldest" default:"newest" doc:"Which come first; live ones are always in order"`
}

func (e *events) register(r *routes) {
	registerLive(r, operation("GET", eventsPath, "listEvents", "Read the log of all that was done and happened", roleViewer, 200), e.list,
		func(p pageOf[operators.Event]) operators.EventList {
			return operators.EventList{Events: p.entries, NextPageToken: p.next}
		}, e.live)
}

func (e *events) list(ctx context.Context, in *eventQuery) (page pageOf[operators.Event], err error) {
	from, err := in.afterNumber()
	if err != nil {
		return page, err
	}
	filter, err := eventFilter(in.EventFilter)
	if err != nil {
		return page, err
	}
	filter.Limit, filter.Newest = in.Size, in.Order != "oldest"
	if filter.Newest {
		filter.Before = from
	} else {
		filter.After = from
	}
	if filter, err = e.ledger.Between(ctx, filter); err != nil {
		return page, err
	}
	stretch, err := e.ledger.EventStretch(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.Within(stretch)
	found, err := e.ledger.Events(ctx, filter)
	return showPage(found, in.full(len(found)), showEvent, func(e store.Event) string { return number(e.ID) }).behind(stretch), err
}

// eventFilter converts the filter. It refuses invalid names, and a period that contains no time.
func eventFilter(in operators.EventFilter) (store.EventFilter, error) {
	if err := checkNames(in.Device, in.Pool); err != nil {
		return store.EventFilter{}, err
	}
	if err := checkSince(in.Since, in.Until); err != nil {
		return store.EventFilter{}, err
	}
	return store.EventFilter{
		Kind: in.Kind, Actor: in.Actor, Pool: in.Pool, Batch: in.Batch, Task: in.Task, Device: in.Device, Since: in.Since, Until: in.Until,
	}, nil
}

// checkSince refuses a period that contains no time. A zero time means no bound.
func checkSince(since, until time.Time) error {
	switch {
	case outOfYears(&since):
		return invalid("since: %s", inYears)
	case outOfYears(&until):
		return invalid("until: %s", inYears)
	}
	if !since.IsZero() && !until.IsZero() && !since.Before(until) {
		return invalid("until: must be later than since")
	}
	return nil
}

func showEvent(e store.Event) operators.Event {
	return operators.Event{
		ID: e.ID, At: stamp(e.At), Kind: e.Kind, Actor: e.Actor, Pool: e.Pool, Batch: e.Batch, Task: e.Task,
		Device: e.Device, Token: e.Token, Detail: e.Detail,
	}
}

const (
	livePoll  = 500 * time.Millisecond
	liveSign  = 15 * time.Second // interval of heartbeats while there are no events
	liveWrite = 15 * time.Second // maximum time that a client may take to receive what was written
	liveMost  = 100              // concurrent streams of one replica
	liveEach  = 10               // concurrent streams of one operator token
)

// feed is one live stream of events. Ids are assigned before the commit, so an event can become visible after one with a
// higher id was sent. Therefore feed sends events only up to a mark below which no event can appear any more: see
// store.EventMark.
type feed struct {
	ledger eventStore
	filter store.EventFilter
	mark   store.EventMark
	marked bool
	last   int64 // all events with an id <= last were sent
	begun  bool  // last is known
	write  func([]byte) error
}

// live sends events once they are complete up to a mark, until the client disconnects, its token ends or this process
// stops. With Last-Event-ID a client resumes after that event.
func (e *events) live(ctx context.Context, out huma.Context, in *eventQuery) {
	_, w := humago.Unwrap(out)
	f := feed{ledger: e.ledger, write: Live(w, liveWrite)}
	f.filter, _ = eventFilter(in.EventFilter) // list has checked the filter
	if last, err := strconv.ParseInt(out.Header("Last-Event-ID"), 10, 64); err == nil && last >= 0 {
		f.last, f.begun = last, true
	}
	out.SetHeader("Content-Type", typeEvents)
	out.SetHeader("Cache-Control", "no-store")
	out.SetStatus(http.StatusOK)
	if f.write([]byte("retry: 3000\n\n")) != nil {
		return
	}
	e.follow(ctx, &f, devicehttp.Bearer(out.Header("Authorization")))
}

func (e *events) follow(ctx context.Context, f *feed, token string) {
	tick := time.NewTicker(livePoll)
	defer tick.Stop()
	for quiet := time.Duration(0); ; quiet += livePoll {
		sent, err := f.advance(ctx)
		if sent {
			quiet = 0
		}
		if err == nil && f.begun && quiet >= liveSign {
			quiet, err = 0, f.write(fmt.Appendf(nil, "id: %d\n\n", f.last))
		}
		if err != nil || e.stopping.Load() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if who, err := e.auth.operator(ctx, token); err != nil || !who.May(roleViewer) {
			return
		}
	}
}

// advance sends the events up to the mark, if no event can appear below the mark any more, and sets the next mark.
func (f *feed) advance(ctx context.Context) (sent bool, err error) {
	if !f.marked {
		sent := int64(-1)
		if f.begun {
			sent = f.last
		}
		if f.mark, err = f.ledger.MarkEvents(ctx, sent); err != nil {
			return false, err
		}
		f.marked = true
	}
	settled, err := f.ledger.EventsSettled(ctx, f.mark)
	if err != nil || !settled {
		return false, err
	}
	f.marked = false
	if !f.begun {
		f.last, f.begun = f.mark.Last, true
		return true, f.write(fmt.Appendf(nil, "id: %d\n\n", f.last)) // so that a client knows where the stream begins
	}
	for f.last < f.mark.Last {
		if err := f.page(ctx); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

func (f *feed) page(ctx context.Context) error {
	filter := f.filter
	filter.After, filter.Before, filter.Limit = f.last, f.mark.Last+1, exportPage
	stretch, err := f.ledger.EventStretch(ctx, filter)
	if err != nil {
		return err
	}
	filter.Within(stretch)
	events, err := f.ledger.Events(ctx, filter)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, e := range events {
		data, err := json.Marshal(showEvent(e))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", e.ID, data)
		f.last = e.ID
	}
	if len(events) < exportPage {
		f.last = filter.Before - 1
	}
	return f.write(text.Bytes())
}

// Live returns a function that writes and flushes a part of a stream. Each write may take the time within. Live removes
// the read deadline of the connection, which is meant for requests that end.
func Live(w http.ResponseWriter, within time.Duration) func([]byte) error {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{}) // the ResponseWriter of a test has no deadlines
	return func(text []byte) error {
		_ = connection.SetWriteDeadline(time.Now().Add(within))
		if _, err := w.Write(text); err != nil {
			return err
		}
		return connection.Flush()
	}
}
