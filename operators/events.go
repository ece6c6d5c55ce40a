package operators

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"time"
)

// Event is an action or an occurrence that the audit log has recorded.
type Event struct {
	ID     int64  `json:"id"`
	At     Time   `json:"at"`
	Kind   string `json:"kind" doc:"e.g. task.granted, batch.created, pool.changed"`
	Actor  string `json:"actor" doc:"Name of an operator's token, a device, or a part of the dispatcher"`
	Pool   string `json:"pool" doc:"Empty, like all fields below: the event is not about one"`
	Batch  int64  `json:"batch" doc:"0, like all fields below: the event is not about one"`
	Task   int64  `json:"task"`
	Device string `json:"device"`
	Token  int64  `json:"token" doc:"The fencing token of a grant"`
	Detail string `json:"detail"`

	ActorKind string `json:"actor_kind" doc:"device, operator, program (a part of the dispatcher), registrant (a fleet token, or a session at an MQTT broker), or unknown: the sender of a request without a known token"`
}

// EventList is a page of events.
type EventList struct {
	Events        []Event `json:"events"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// EventFilter selects the events that match all fields that are set.
type EventFilter struct {
	Kind      string `query:"kind" maxLength:"64"`
	Actor     string `query:"actor" maxLength:"200"`
	ActorKind string `query:"actor_kind" enum:"device,operator,program,registrant,unknown"`
	Pool      string `query:"pool"`
	Batch     int64  `query:"batch" minimum:"0" maximum:"9007199254740991"`
	Task      int64  `query:"task" minimum:"0" maximum:"9007199254740991"`
	Device    string `query:"device"`

	Since time.Time `query:"since" doc:"Only events at this time or later, such as 2026-11-21T14:00:00Z"`
	Until time.Time `query:"until" doc:"Only events before this time"`
}

// query returns the query parameters of the filter.
func (f EventFilter) query() url.Values {
	q := Query("kind", f.Kind, "actor", f.Actor, "actor_kind", f.ActorKind, "pool", f.Pool, "batch", decimalOrEmpty(f.Batch), "task", decimalOrEmpty(f.Task), "device", f.Device)
	for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !at.IsZero() {
			q.Set(name, at.Format(time.RFC3339Nano))
		}
	}
	return q
}

// Events has the calls about the audit log.
type Events struct{ client *Client }

// List yields all events that match the filter, newest first.
func (c Events) List(ctx context.Context, filter EventFilter) iter.Seq2[Event, error] {
	return listEntries[Event](ctx, c.client, Path("events"), filter.query())
}

// Follow calls handle with every event after position that matches filter, once and in order, as the events happen. It resumes after a lost
// connection like Client.Follow. An error of handle ends Follow.
func (c Events) Follow(ctx context.Context, filter EventFilter, position LivePosition, handle func(Event) error) error {
	return c.client.Follow(ctx, Path("events"), filter.query(), position, func(text json.RawMessage) error {
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		return handle(e)
	})
}
