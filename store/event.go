package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// events is the part of the ledger that holds the activity and audit log. The type Event is in device.go. Each event is written where the
// change is made.
type events struct{ *connection }

// ActorKind says what the actor of an event is. Actors of two kinds can have the same name.
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

// programActors returns the names of the parts of the dispatcher in the log.
func programActors() []string {
	return []string{abortRuleActor, Canceller, "command line", "dashboard", systemActor, reaperActor, retentionActor, "serve --after-restore"}
}

// kindOfActor returns the kind of an actor that is not a device. No operator token has the name of a program or unknownActor: see
// CreateToken.
func kindOfActor(name string) ActorKind {
	switch {
	case name == unknownActor:
		return ActorUnknown
	case slices.Contains(programActors(), name):
		return ActorProgram
	}
	return ActorOperator
}

// recordEvent writes event in the transaction of the change that it describes. If the actor is a device, event must have its ActorKind: an
// empty ActorKind stands for kindOfActor.
func (s session) recordEvent(ctx context.Context, event Event) error {
	_, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		event.Kind, event.Actor, string(cmp.Or(event.ActorKind, kindOfActor(event.Actor))), event.Pool, event.Batch, event.Task, event.Device, event.Token, event.Detail)
	return err
}

// RecordRefusal writes event, which describes a request that was refused. It needs a transaction of its own because a refused request
// changes nothing else.
func (s events) RecordRefusal(ctx context.Context, event Event) error {
	event.Kind = "access.refused"
	return s.write(ctx, func(tx session) error { return tx.recordEvent(ctx, event) })
}

// settings are the names of settings, each followed by its value, in the form of the audit log.
type settings []string

// describeChanges returns the settings that differ between before and after, as "name=old -> new". Both must have the same names in the same
// order.
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

// eventDest returns the destinations in event for eventColumns.
func eventDest(e *Event) []any {
	return []any{&e.ID, &e.At, &e.Kind, &e.Actor, &e.ActorKind, &e.Pool, &e.Batch, &e.Task, &e.Device, &e.Token, &e.Detail}
}

// EventPosition is a position in the order of the events. All events with an id up to Last can be read when every transaction with an id
// below xidBound has ended.
type EventPosition struct {
	Last     int64 // the highest event id given so far
	xidBound int64 // a transaction id; each transaction that gave an event an id up to Last has a lower transaction id
}

// ReadEventPosition returns the position of the highest event id given so far. readUpTo is the id up to which the caller has read all
// events, or -1 if it has read none. If the highest id equals readUpTo, ReadEventPosition consumes no transaction id.
func (s events) ReadEventPosition(ctx context.Context, readUpTo int64) (EventPosition, error) {
	var m EventPosition
	// The id must be read before xidBound. Then each transaction that has got an event id up to m.Last began before xidBound was read, so
	// its transaction id is below xidBound.
	if err := s.readSession().scanRow(ctx, []any{&m.Last}, `SELECT {last event}`); err != nil || m.Last == readUpTo {
		return m, err
	}
	err := s.readSession().scanRow(ctx, []any{&m.xidBound}, `SELECT {new xid}`)
	return m, err
}

// EventsComplete reports whether all events with an id up to position.Last can be read: every transaction that could still commit one of
// them has ended.
func (s events) EventsComplete(ctx context.Context, position EventPosition) (bool, error) {
	return queryOne(ctx, s.readSession(), singleColumn[bool], `SELECT {oldest xid} >= $1`, position.xidBound)
}
