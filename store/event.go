package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// events holds the activity and audit log. The type Event is in device.go. Each event is written in the transaction of the change.
type events struct{ *connection }

// ActorKind is the kind of the actor of an event. Actors of two kinds can have the same name.
type ActorKind string

// Kinds of actors.
const (
	ActorDevice   ActorKind = "device"   // a device, or a holder of a caller's lease
	ActorOperator ActorKind = "operator" // the owner of an operator token
	ActorProgram  ActorKind = "program"  // a part of the dispatcher
	// ActorRegistrant is a fleet token, or all sessions at an MQTT broker: see Registration.
	ActorRegistrant ActorKind = "registrant"
	ActorUnknown    ActorKind = "unknown" // the sender of a request without a known token
)

// unknownActor is the name of an actor of the kind ActorUnknown.
const unknownActor = "nobody"

// programActors returns the names that the log has for parts of the dispatcher.
func programActors() []string {
	return []string{abortRuleActor, Canceller, "command line", "dashboard", systemActor, reaperActor, retentionActor, "serve --after-restore"}
}

// kindOfActor returns the kind of an actor that is not a device. CreateToken reserves the names of programs and unknownActor. Methods
// for operators alone may write the kind operator without it.
func kindOfActor(actorName string) ActorKind {
	switch {
	case actorName == unknownActor:
		return ActorUnknown
	case slices.Contains(programActors(), actorName):
		return ActorProgram
	}
	return ActorOperator
}

// recordEvent writes event in the transaction of its change. An event of a device must have an ActorKind. For other events, recordEvent
// sets the result of kindOfActor.
func (s session) recordEvent(ctx context.Context, event Event) error {
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		event.Kind, event.Actor, string(cmp.Or(event.ActorKind, kindOfActor(event.Actor))), event.Pool, event.Batch, event.Task, event.Device, event.Token, event.Detail)
	return err
}

// RecordRefusal writes event, which describes a refused request, in a transaction of its own.
func (s events) RecordRefusal(ctx context.Context, event Event) error {
	event.Kind = "access.refused"
	return s.write(ctx, func(tx session) error { return tx.recordEvent(ctx, event) })
}

// settings are the names of settings, each followed by its value, in the form of the audit log.
type settings []string

// describeChanges returns the settings that differ, as "name=old -> new". before and after must have the same names in the same order.
func describeChanges(before, after settings) string {
	var changes []string
	for i := 1; i < len(after); i += 2 {
		if before[i] != after[i] {
			changes = append(changes, after[i-1]+"="+before[i]+" -> "+after[i])
		}
	}
	return strings.Join(changes, " ")
}

// eventColumns are all columns of the event e.
const eventColumns = `e.id, e.at, e.kind, e.actor, e.actor_kind, e.pool, e.batch, e.task, e.device, e.token, e.detail`

func eventScanDest(event *Event) (scanDest []any) {
	return []any{&event.ID, &event.At, &event.Kind, &event.Actor, &event.ActorKind, &event.Pool, &event.Batch, &event.Task, &event.Device, &event.Token, &event.Detail}
}

// EventPosition is a position in the log. All events up to Last are committed when all transactions with an id < xidBound have ended.
type EventPosition struct {
	Last     int64 // the highest event id given so far
	xidBound int64 // a transaction id; each transaction that gave an event an id up to Last has a lower transaction id
}

// ReadEventPosition returns the position of the highest event id. readUpTo is the last id that the caller has read, or -1. If readUpTo is
// the highest id, no transaction id is consumed.
func (s events) ReadEventPosition(ctx context.Context, readUpTo int64) (EventPosition, error) {
	var m EventPosition
	// The id must be read before xidBound. If xidBound was read first, a transaction could begin in between and
	// write an event with an id up to m.Last, although its transaction id is not below xidBound.
	if err := s.readSession().scanRow(ctx, []any{&m.Last}, `SELECT {last event}`); err != nil || m.Last == readUpTo {
		return m, err
	}
	err := s.readSession().scanRow(ctx, []any{&m.xidBound}, `SELECT {new xid}`)
	return m, err
}

// EventsComplete reports whether no transaction is left that could still commit an event with an id up to position.Last.
func (s events) EventsComplete(ctx context.Context, position EventPosition) (isComplete bool, err error) {
	return queryOne(ctx, s.readSession(), singleColumn[bool], `SELECT {oldest xid} >= $1`, position.xidBound)
}
