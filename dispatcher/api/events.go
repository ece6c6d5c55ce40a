package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type eventStore interface {
	Events(ctx context.Context, filter store.EventFilter) ([]store.Event, error)
	MarkEvents(ctx context.Context, sent int64) (store.EventMark, error)
	EventsSettled(ctx context.Context, mark store.EventMark) (bool, error)
}

type eventQuery struct {
	Page
	operators.EventFilter
	Order string `query:"order" enum:"newest,oldest" default:"newest" doc:"Which come first; live ones are always in order"`
}

func (q *eventQuery) page() *Page { return &q.Page }

func (a *API) registerEvents(operations huma.API) {
	registerList(a, operations, operation("GET", eventsPath, "listEvents", "Read the log of all that was done and happened", roleViewer, 200), listing[eventQuery, operators.EventList, operators.Event]{
		handle: a.listEvents, page: (*eventQuery).page,
		items: func(l operators.EventList) ([]operators.Event, string) { return l.Events, l.NextPageToken },
		live:  a.liveEvents,
	})
}

func (a *API) listEvents(ctx context.Context, in *eventQuery) (*body[operators.EventList], error) {
	from, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	filter, err := eventFilter(in.EventFilter)
	if err != nil {
		return nil, err
	}
	filter.Limit, filter.Newest = in.Size, in.Order != "oldest"
	if filter.Newest {
		filter.Before = from
	} else {
		filter.After = from
	}
	events, err := a.store.Events(ctx, filter)
	if err != nil {
		return nil, err
	}
	list := operators.EventList{Events: make([]operators.Event, len(events))}
	for i, e := range events {
		list.Events[i] = showEvent(e)
		list.NextPageToken = nextPage(in.full(len(events)), strconv.FormatInt(e.ID, 10))
	}
	return &body[operators.EventList]{list}, nil
}

// eventFilter refuses names that nothing can have.
func eventFilter(in operators.EventFilter) (store.EventFilter, error) {
	if in.Device != "" {
		if _, err := devices.ParseID(in.Device); err != nil {
			return store.EventFilter{}, err
		}
	}
	if in.Pool != "" {
		if err := devices.ParsePool(in.Pool); err != nil {
			return store.EventFilter{}, err
		}
	}
	return store.EventFilter{Kind: in.Kind, Actor: in.Actor, Pool: in.Pool, Batch: in.Batch, Task: in.Task, Device: in.Device}, nil
}

func showEvent(e store.Event) operators.Event {
	return operators.Event{
		ID: e.ID, At: stamp(e.At), Kind: e.Kind, Actor: e.Actor, Pool: e.Pool, Batch: e.Batch, Task: e.Task,
		Device: e.Device, Token: e.Token, Detail: e.Detail,
	}
}
