package api

import (
	"context"
	"sync/atomic"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type eventStore interface {
	Events(ctx context.Context, filter store.EventFilter) ([]store.Event, error)
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
	stretch, err := e.ledger.EventStretch(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.Within(stretch)
	found, err := e.ledger.Events(ctx, filter)
	return showPage(found, in.full(len(found)), showEvent, func(e store.Event) string { return number(e.ID) }).behind(stretch), err
}

// eventFilter refuses names that nothing can have.
func eventFilter(in operators.EventFilter) (store.EventFilter, error) {
	if err := checkNames(in.Device, in.Pool); err != nil {
		return store.EventFilter{}, err
	}
	return store.EventFilter{Kind: in.Kind, Actor: in.Actor, Pool: in.Pool, Batch: in.Batch, Task: in.Task, Device: in.Device}, nil
}

func showEvent(e store.Event) operators.Event {
	return operators.Event{
		ID: e.ID, At: stamp(e.At), Kind: e.Kind, Actor: e.Actor, Pool: e.Pool, Batch: e.Batch, Task: e.Task,
		Device: e.Device, Token: e.Token, Detail: e.Detail,
	}
}
