package operators

import (
	"context"
	"encoding/json"
	"iter"
	"strconv"
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
	BatchName string `json:"batch_name" doc:"The name of the batch now; empty: it has none, or no longer exists"`
}

// EventList is a page of events.
type EventList struct {
	Events        []Event `json:"events"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// EventFilter selects the events that match all fields that are set.
type EventFilter struct {
	Kind      string `query:"kind" maxLength:"64" flag:"only events of this kind: task.granted, batch.paused, ..."`
	Actor     string `query:"actor" maxLength:"200" flag:"only events caused by this operator, device or part of the dispatcher"`
	ActorKind string `query:"actor_kind" enum:"device,operator,program,registrant,unknown" flag:"only events caused by a device, operator, program (a part of the dispatcher), registrant (a fleet token or session), or unknown (a sender without a known token)"`
	Pool      string `query:"pool" flag:"only events about this pool"`
	Batch     int64  `query:"batch" minimum:"0" maximum:"9007199254740991" flag:"only events about this batch"`
	Task      int64  `query:"task" minimum:"0" maximum:"9007199254740991" flag:"only events about this task"`
	Device    string `query:"device" flag:"only events about this device"`

	Since time.Time `query:"since" doc:"Only events at this time or later, such as 2026-11-21T14:00:00Z"`
	Until time.Time `query:"until" doc:"Only events before this time"`
}

// Events has the calls about the audit log.
type Events struct {
	client *Client

	List List[EventFilter, Event] `op:"GET /v1/events" id:"listEvents" scope:"input" role:"viewer" doc:"List the events of the audit log"`

	_ struct{} `op:"GET /v1/events/seals" id:"listEventSeals" role:"viewer" doc:"Compare the events with their seals"`
}

// Follow calls handle with every event after position that matches filter, once and in order, as the events happen. It resumes after a lost
// connection like Client.Follow. An error of handle ends Follow.
func (c Events) Follow(ctx context.Context, filter EventFilter, position LivePosition, handle func(Event) error) error {
	request := c.client.prepareRequest(ctx, "listEvents", filter)
	return c.client.Follow(ctx, request.Path, request.Query, position, func(text json.RawMessage) error {
		var e Event
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		return handle(e)
	})
}

// EventSeal is the seal of a block of events, compared with the events that the ledger has now in this block. If no event was changed,
// Computed equals Hash. The last entry of the list may have events that are not sealed yet: then SealedAt is nil, and Hash and Computed are
// empty.
type EventSeal struct {
	After    int64  `json:"after" doc:"The block has the events with after < id <= last"`
	Last     int64  `json:"last"`
	Events   int    `json:"events" doc:"Number of events in the block when it was sealed; 0 for the first seal: its events were deleted"`
	SealedAt *Time  `json:"sealed_at" nullable:"true" doc:"Null, only in the last entry: these events are not sealed yet"`
	Hash     string `json:"hash" doc:"SHA-256 over the hash of the seal before, the events and the seal, in hexadecimal digits"`
	Found    int    `json:"found" doc:"Number of events now, at most events + 1; not sealed yet: at most 50,000"`
	Computed string `json:"computed" doc:"The hash of what was found; if it differs from the hash of the seal, the log was changed"`
}

// EventSealList is a page of seals.
type EventSealList struct {
	Seals         []EventSeal `json:"seals"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

// Seals yields all seals with Last > afterEvent, in their order. If afterEvent is -1, it begins with the first seal.
func (c Events) Seals(ctx context.Context, afterEvent int64) iter.Seq2[EventSeal, error] {
	return listEntries[EventSeal](ctx, c.client, c.client.prepareRequest(ctx, "listEventSeals", Query("after", strconv.FormatInt(afterEvent, 10))))
}
