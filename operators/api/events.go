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

// events are the operations on the log.
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

// eventFilter refuses names that nothing can have, and times that none is between.
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

// checkSince refuses times that none is between; a zero one is no bound.
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
	liveSign  = 15 * time.Second // of life, when there is no news
	liveWrite = 15 * time.Second // the longest a client may take for what it is sent
	liveMost  = 100              // streams of one replica at once
	liveEach  = 10               // of one operator token
)

// feed is one live stream of events. Ids are given before their commit, so an
// id may become visible below one that was sent. Therefore nothing is sent
// beyond a mark before that has settled: see store.EventMark.
type feed struct {
	ledger eventStore
	filter store.EventFilter
	mark   store.EventMark
	marked bool
	last   int64 // all up to it was sent
	begun  bool  // last is known
	write  func([]byte) error
}

// live sends events as they settle, until the client leaves, its token ends or
// this process does. A client goes on where it was with Last-Event-ID.
func (e *events) live(ctx context.Context, out huma.Context, in *eventQuery) {
	_, w := humago.Unwrap(out)
	f := feed{ledger: e.ledger, write: Live(w, liveWrite)}
	f.filter, _ = eventFilter(in.EventFilter) // checked before
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

// advance sends what has settled and sets the next mark.
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
		return true, f.write(fmt.Appendf(nil, "id: %d\n\n", f.last)) // so that a client knows where it began
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

// Live writes the parts of a stream to a client at once, each within a time. The
// connection's own deadlines are for requests that end.
func Live(w http.ResponseWriter, within time.Duration) func([]byte) error {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{}) // a test's recorder has none
	return func(text []byte) error {
		_ = connection.SetWriteDeadline(time.Now().Add(within))
		if _, err := w.Write(text); err != nil {
			return err
		}
		return connection.Flush()
	}
}
