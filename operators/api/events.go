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
	WithIDRange(ctx context.Context, filter store.EventFilter) (store.EventFilter, error)
	EventSearchBound(ctx context.Context, filter store.EventFilter) (store.SearchBound, error)
	ReadEventPosition(ctx context.Context, readUpTo int64) (store.EventPosition, error)
	EventsComplete(ctx context.Context, position store.EventPosition) (bool, error)
	CheckSeals(ctx context.Context, after int64, limit int) ([]store.CheckedSeal, bool, error)
}

type eventOperations struct {
	ledger   eventStore
	auth     *authenticator
	stopping *atomic.Bool
}

type eventQuery struct {
	NumberPage
	operators.EventFilter
	Order string `query:"order" enum:"newest,oldest" default:"newest" doc:"Sort order; a live stream is always oldest first"`
}

func (e *eventOperations) register(r *routes) {
	registerLive[operators.EventList](r, r.describeOperation("listEvents"), e.list, e.streamLive)
	registerList[operators.EventSealList](r, r.describeOperation("listEventSeals"), e.listSeals)
}

func (e *eventOperations) list(ctx context.Context, in *eventQuery) (page listPage[operators.Event], err error) {
	filter, err := eventFilter(in.EventFilter)
	if err != nil {
		return page, err
	}
	filter.Limit, filter.Newest = in.Size, in.Order != "oldest"
	if filter.Newest {
		filter.Before = in.afterNumber
	} else {
		filter.After = in.afterNumber
	}
	if filter, err = e.ledger.WithIDRange(ctx, filter); err != nil {
		return page, err
	}
	bound, err := e.ledger.EventSearchBound(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.LimitTo(bound)
	found, err := e.ledger.Events(ctx, filter)
	return newPage(found, in.isFull(len(found)), toAPIEvent, func(e store.Event) string { return formatDecimal(e.ID) }).continueAfter(bound), err
}

// eventFilter converts a filter of events to the filter of the ledger. It returns an error for invalid names, and for a period whose end
// is not after its beginning.
func eventFilter(requested operators.EventFilter) (store.EventFilter, error) {
	if err := checkDeviceAndPoolNames(requested.Device, requested.Pool); err != nil {
		return store.EventFilter{}, err
	}
	if err := checkPeriod("since", requested.Since, "until", requested.Until); err != nil {
		return store.EventFilter{}, err
	}
	return store.EventFilter{
		Kind: requested.Kind, Actor: requested.Actor, ActorKind: store.ActorKind(requested.ActorKind), Pool: requested.Pool, Batch: requested.Batch,
		Task: requested.Task, Device: requested.Device, Since: requested.Since, Until: requested.Until,
	}, nil
}

func toAPIEvent(event store.Event) operators.Event {
	return operators.Event{
		ID: event.ID, At: apiTime(event.At), Kind: event.Kind, Actor: event.Actor, Pool: event.Pool, Batch: event.Batch, Task: event.Task,
		Device: event.Device, Token: event.Token, Detail: event.Detail, ActorKind: string(event.ActorKind), BatchName: event.BatchName,
	}
}

func (e *eventOperations) listSeals(ctx context.Context, in *struct {
	NumberPage
	After int64 `query:"after" minimum:"-1" maximum:"9007199254740991" default:"-1" doc:"Only seals whose last is above this event id; -1: all"`
},
) (page listPage[operators.EventSeal], err error) {
	after := in.After
	if in.Token != "" {
		after = in.afterNumber
	}
	found, more, err := e.ledger.CheckSeals(ctx, after, in.Size)
	return newPage(found, more, toAPISeal, func(s store.CheckedSeal) string { return formatDecimal(s.Last) }), err
}

func toAPISeal(seal store.CheckedSeal) operators.EventSeal {
	return operators.EventSeal{After: seal.After, Last: seal.Last, Events: seal.Events, SealedAt: apiTimeIfSet(seal.At), Hash: seal.Hash, Found: seal.Found, Computed: seal.Computed}
}

const (
	typeEvents = "text/event-stream"

	livePollInterval  = 500 * time.Millisecond
	heartbeatInterval = 15 * time.Second // interval of heartbeats while there are no events
	liveWriteTimeout  = 15 * time.Second // maximum time that a client may take to receive what was written
	maxLiveStreams    = 100              // concurrent streams of one replica
	maxLivePerToken   = 10               // concurrent streams of one operator token
)

// eventFeed is one live stream of events. Ids are assigned before the commit, so an event can become visible after an
// event with a higher id was sent. Therefore eventFeed sends the events up to a position in the log only when all
// transactions that could add an event before this position have ended (see store.EventPosition).
type eventFeed struct {
	ledger      eventStore
	filter      store.EventFilter
	position    store.EventPosition // the next events are sent up to this position
	hasPosition bool                // position was read, and the events up to it were not sent yet
	last        int64               // all events with an id <= last were sent
	hasLast     bool                // last is known
	write       func([]byte) error
}

// streamLive sends the events that match request, in the order of their ids. It ends when the client disconnects, its token ends or this
// process stops. With Last-Event-ID a client resumes after that event.
func (e *eventOperations) streamLive(ctx context.Context, response huma.Context, request *eventQuery) {
	_, w := humago.Unwrap(response)
	f := eventFeed{ledger: e.ledger, write: NewStreamWriter(w, liveWriteTimeout)}
	f.filter, _ = eventFilter(request.EventFilter) // list has checked the filter
	if last, err := strconv.ParseInt(response.Header("Last-Event-ID"), 10, 64); err == nil && last >= 0 {
		f.last, f.hasLast = last, true
	}
	response.SetHeader("Content-Type", typeEvents)
	response.SetHeader("Cache-Control", "no-store")
	response.SetStatus(http.StatusOK)
	if f.write([]byte("retry: 3000\n\n")) != nil {
		return
	}
	e.followEvents(ctx, &f, devicehttp.Bearer(response.Header("Authorization")))
}

// followEvents sends the events of feed until the client disconnects, this process stops, or the token may no longer read events. It
// repeats the check of the role that authorize made, so both checks must agree.
func (e *eventOperations) followEvents(ctx context.Context, feed *eventFeed, token string) {
	tick := time.NewTicker(livePollInterval)
	defer tick.Stop()
	for quiet := time.Duration(0); ; quiet += livePollInterval {
		sent, err := feed.sendCompleteEvents(ctx)
		if sent {
			quiet = 0
		}
		if err == nil && feed.hasLast && quiet >= heartbeatInterval {
			quiet, err = 0, feed.write(fmt.Appendf(nil, "id: %d\n\n", feed.last))
		}
		if err != nil || e.stopping.Load() {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if operator, err := e.auth.tokenOperator(ctx, token); err != nil || !operator.May(roleViewer) {
			return
		}
	}
}

// sendCompleteEvents reads a position if the feed has none. When all transactions that could add an event before the position have ended,
// it sends the events up to the position. sent reports whether it wrote to the stream.
func (f *eventFeed) sendCompleteEvents(ctx context.Context) (sent bool, err error) {
	if !f.hasPosition {
		sent := int64(-1)
		if f.hasLast {
			sent = f.last
		}
		if f.position, err = f.ledger.ReadEventPosition(ctx, sent); err != nil {
			return false, err
		}
		f.hasPosition = true
	}
	isComplete, err := f.ledger.EventsComplete(ctx, f.position)
	if err != nil || !isComplete {
		return false, err
	}
	f.hasPosition = false
	if !f.hasLast {
		f.last, f.hasLast = f.position.Last, true
		return true, f.write(fmt.Appendf(nil, "id: %d\n\n", f.last)) // so that a client knows where the stream begins
	}
	for f.last < f.position.Last {
		if err := f.sendPage(ctx); err != nil {
			return sent, err
		}
		sent = true
	}
	return sent, nil
}

// sendPage sends at most exportPageSize events after the last one that was sent, up to the position of the feed.
func (f *eventFeed) sendPage(ctx context.Context) error {
	filter := f.filter
	filter.After, filter.Before, filter.Limit = f.last, f.position.Last+1, exportPageSize
	bound, err := f.ledger.EventSearchBound(ctx, filter)
	if err != nil {
		return err
	}
	filter.LimitTo(bound)
	events, err := f.ledger.Events(ctx, filter)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	for _, e := range events {
		data, err := json.Marshal(toAPIEvent(e))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", e.ID, data)
		f.last = e.ID
	}
	if len(events) < exportPageSize {
		f.last = filter.Before - 1
	}
	return f.write(text.Bytes())
}

// NewStreamWriter returns a function that writes and flushes a part of a stream to the response. Each write fails after timeout.
// NewStreamWriter removes the read deadline of the connection, which is meant for requests that end.
func NewStreamWriter(w http.ResponseWriter, timeout time.Duration) (writePart func([]byte) error) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{}) // the ResponseWriter of a test has no deadlines
	return func(text []byte) error {
		_ = connection.SetWriteDeadline(time.Now().Add(timeout))
		if _, err := w.Write(text); err != nil {
			return err
		}
		return connection.Flush()
	}
}
