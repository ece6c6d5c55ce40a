package api

import (
	"context"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

type eventStore interface {
	Events(ctx context.Context, filter store.EventFilter) ([]store.Event, error)
	MarkEvents(ctx context.Context, sent int64) (store.EventMark, error)
	EventsSettled(ctx context.Context, mark store.EventMark) (bool, error)
}

// EventBody is an event on the wire.
type EventBody struct {
	ID     int64     `json:"id"`
	At     timestamp `json:"at"`
	Kind   string    `json:"kind" doc:"e.g. task.granted, batch.created, pool.changed"`
	Actor  string    `json:"actor" doc:"Name of an operator's token, a device, or a part of the dispatcher"`
	Pool   string    `json:"pool" doc:"Empty, like the rest: not about one"`
	Batch  int64     `json:"batch" doc:"0, like the rest: not about one"`
	Task   int64     `json:"task"`
	Device string    `json:"device"`
	Token  int64     `json:"token" doc:"The fencing token of a grant"`
	Detail string    `json:"detail"`
}

type eventList struct {
	Events        []EventBody `json:"events"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

type eventQuery struct {
	Page
	EventSelection
	Order string `query:"order" enum:"newest,oldest" default:"newest" doc:"Which come first; live ones are always in order"`
}

func (q *eventQuery) page() *Page { return &q.Page }

// EventSelection are the filters of events; all must match.
type EventSelection struct {
	Kind   string `query:"kind" maxLength:"64"`
	Actor  string `query:"actor" maxLength:"200"`
	Pool   string `query:"pool"`
	Batch  int64  `query:"batch" minimum:"0" maximum:"9007199254740991"`
	Task   int64  `query:"task" minimum:"0" maximum:"9007199254740991"`
	Device string `query:"device"`
}

func (a *API) registerEvents(operations huma.API) {
	registerList(a, operations, operation("GET", eventsPath, "listEvents", "Read the log of all that was done and happened", roleViewer, 200), listing[eventQuery, eventList, EventBody]{
		handle: a.listEvents, page: (*eventQuery).page,
		items: func(l eventList) ([]EventBody, string) { return l.Events, l.NextPageToken },
		live:  a.liveEvents,
	})
}

func (a *API) listEvents(ctx context.Context, in *eventQuery) (*body[eventList], error) {
	from, err := in.afterNumber()
	if err != nil {
		return nil, err
	}
	filter, err := in.filter()
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
	list := eventList{Events: make([]EventBody, len(events))}
	for i, e := range events {
		list.Events[i] = showEvent(e)
		list.NextPageToken = nextPage(in.full(len(events)), strconv.FormatInt(e.ID, 10))
	}
	return &body[eventList]{list}, nil
}

// filter refuses names that nothing can have.
func (in EventSelection) filter() (store.EventFilter, error) {
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

func showEvent(e store.Event) EventBody {
	return EventBody{
		ID: e.ID, At: stamp(e.At), Kind: e.Kind, Actor: e.Actor, Pool: e.Pool, Batch: e.Batch, Task: e.Task,
		Device: e.Device, Token: e.Token, Detail: e.Detail,
	}
}
