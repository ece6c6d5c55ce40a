package operators

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"time"
)

// NewBatch is a batch to be queued. Exactly one of Devices, Tasks and Select is set. The struct tag `flag` of a field is the help text of
// its flag on the command line.
type NewBatch struct {
	Name           string          `json:"name,omitempty" maxLength:"200" flag:"name of the batch, for display and search"`
	Pool           string          `json:"pool" minLength:"1" maxLength:"64" flag:"pool whose slots the tasks use; required"`
	Kind           string          `json:"kind,omitempty" maxLength:"64" doc:"The work that the device does; you define its names" flag:"kind of work for the devices, such as speedtest"`
	Payload        json.RawMessage `json:"payload,omitempty" doc:"Shared by all tasks; a task's own object is a merge patch (RFC 7396) to it; together at most 32 KiB" flag:"JSON that all tasks share, or @FILE"`
	Priority       int             `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000" doc:"Higher first" flag:"priority of the tasks within the batch; higher first"`
	Weight         int             `json:"weight,omitempty" minimum:"1" maximum:"1000" default:"1" doc:"Share of the pool's slots, among its batches with open work" flag:"share of the pool's slots relative to other waiting batches, 1 to 1000 (default 1)"`
	Lane           string          `json:"lane,omitempty" enum:"normal,urgent" default:"normal" doc:"urgent: goes before all normal batches of the pool, whatever their weights, while urgent batches hold less than their share of the pool" flag:"urgent: before all other batches of the pool, up to a share of its slots (default normal)"`
	NotBefore      *time.Time      `json:"not_before,omitempty" nullable:"true" flag:"no task starts before this time: 2027-01-31T22:00:00Z"`
	NotAfter       *time.Time      `json:"not_after,omitempty" nullable:"true" doc:"When pending tasks expire; absent: never" flag:"tasks that still wait at this time expire"`
	MaxWaitMS      int64           `json:"max_wait_ms,omitempty" minimum:"1" maximum:"7776000000" doc:"A task that was not started within this time expires. The time counts from the creation, or from a later not_before. Default: no limit" flag:"tasks that did not start within this time expire: 30m; it counts from the creation of the batch, or from a later not-before time"`
	Windows        []Window        `json:"windows,omitempty" nullable:"true" doc:"When tasks may start; empty: always" flag:"when tasks may start: \"0 1 * * * 4h Asia/Shanghai\" is cron, duration, time zone (UTC if left out); may be repeated"`
	Limits         []Policy        `json:"limits,omitempty" nullable:"true" doc:"How often its tasks may start, in addition to the limits of its pool" flag:"policies that limit how often tasks may start: a JSON list, or @FILE with one"`
	FinishInside   *bool           `json:"finish_inside,omitempty" default:"true" doc:"true: a task starts only if its whole lease fits into the open window of the batch and of the pool" flag:"no task starts if less than its lease is left of the window"`
	MaxAttempts    int             `json:"max_attempts,omitempty" minimum:"1" maximum:"100" default:"3" flag:"maximum attempts of each task, 1 to 100 (default 3)"`
	RetryOn        []string        `json:"retry_on,omitempty" nullable:"true" enum:"failed,timed_out" doc:"Outcomes that are retried; absent or empty: both. To retry nothing, set max_attempts to 1" flag:"outcomes that are retried: failed, timed_out (default both)"`
	RetryBackoffMS *int64          `json:"retry_backoff_ms,omitempty" minimum:"0" maximum:"86400000" default:"10000" doc:"Wait before the second attempt. It doubles with each attempt, with jitter, up to one hour or this value if that is longer" flag:"pause before the second attempt; doubles with each further attempt (default 10s)"`
	OnLost         string          `json:"on_lost,omitempty" enum:"retry,fail" default:"retry" doc:"What happens to a task whose lease lapsed" flag:"what to do if a lease ends without a result: retry or fail (default retry)"`
	LeaseMS        int64           `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" doc:"Default: the lease of the pool" flag:"lease of each task (default: the lease of the pool)"`
	MaxRunMS       int64           `json:"max_run_ms,omitempty" minimum:"1" maximum:"604800000" doc:"Longest run: the lease is not renewed beyond it; default: one hour" flag:"time after which a lease is not renewed (default 1h)"`
	Abort          *Abort          `json:"abort,omitempty" doc:"Rule that pauses the batch when too many tasks fail; absent: none"`
	Duplicates     string          `json:"duplicates,omitempty" enum:"allow,refuse,skip" default:"allow" doc:"What happens to tasks of this batch with the same device, kind and payload (JSON is compared by content): allow queues all, refuse refuses the batch, skip queues only the first" flag:"tasks equal in device, kind and payload: allow (default), refuse the batch, or skip all but the first"`
	Devices        []string        `json:"devices,omitempty" nullable:"true" doc:"One task for each device. Use one of devices, tasks and select"`
	Tasks          []NewTask       `json:"tasks,omitempty" nullable:"true" doc:"Tasks with their own payloads. Use one of devices, tasks and select"`
	Select         *Selection      `json:"select,omitempty" doc:"One task for each device that has all of the tags now. Use one of devices, tasks and select"`
}

// NewTask is one task of a new batch.
type NewTask struct {
	Device   string          `json:"device"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	Priority *int            `json:"priority,omitempty" minimum:"-1000000" maximum:"1000000"`

	NotBefore *time.Time `json:"not_before,omitempty" nullable:"true" doc:"In addition to that of the batch; the later one applies"`
	NotAfter  *time.Time `json:"not_after,omitempty" nullable:"true" doc:"In addition to that of the batch; the earlier one applies"`
}

// Selection selects the devices that have all of the tags.
type Selection struct {
	Tags map[string]string `json:"tags" minProperties:"1" maxProperties:"64"`
}

// Abort is the rule that pauses a batch when too many of its tasks fail.
type Abort struct {
	Failure float64 `json:"failure" exclusiveMinimum:"0" maximum:"1" doc:"Share of failed and timed_out tasks among the tasks that were tried"`
	Min     int64   `json:"min,omitempty" minimum:"1" maximum:"9007199254740991" default:"1" doc:"Number of tried tasks from which the rule applies; the count restarts after a resume"`
}

// QueueMode has the options for queueing a batch.
type QueueMode struct {
	DryRun         bool   `json:"dry_run,omitempty" query:"dry_run" doc:"Count only: nothing is created, id is 0"`
	UnknownDevices string `json:"unknown_devices,omitempty" query:"unknown_devices" enum:"allow,refuse" default:"allow" doc:"refuse: the batch is refused if a device is not registered"`
}

// BatchCreated is the response to a new batch.
type BatchCreated struct {
	ID      int64         `json:"id" doc:"0 after a dry run"`
	Tasks   int64         `json:"tasks"`
	Skipped *int64        `json:"skipped,omitempty" doc:"Number of duplicate tasks that were not queued; only with duplicates=skip"`
	Unknown *UnknownTasks `json:"unknown,omitempty" doc:"Number of tasks whose devices are not registered; absent: 0"`
	WarningList
}

// UnknownTasks counts the tasks whose devices are not registered.
type UnknownTasks struct {
	Tasks int64  `json:"tasks"`
	First string `json:"first" doc:"The device of the first of these tasks"`
}

// Batch is a batch and its counts. All its tasks are in its pool, which never changes.
type Batch struct {
	ID             int64            `json:"id"`
	Name           string           `json:"name"`
	Pool           string           `json:"pool"`
	Kind           string           `json:"kind"`
	State          string           `json:"state" enum:"scheduled,running,paused,cancelling,finished,cancelled"`
	Condition      string           `json:"condition" enum:"scheduled,running,held_up,paused,cancelling,finished,cancelled" doc:"The state, except: scheduled while the windows of the batch or of its pool are closed, held_up while its pool is paused or has no slots"`
	Priority       int              `json:"priority"`
	Weight         int              `json:"weight"`
	Lane           string           `json:"lane" enum:"normal,urgent"`
	System         bool             `json:"system" doc:"true: its tasks are leases of callers; no operator queued them"`
	NotBefore      *Time            `json:"not_before" nullable:"true"`
	NotAfter       *Time            `json:"not_after" nullable:"true"`
	MaxWaitMS      int64            `json:"max_wait_ms" doc:"0: no limit"`
	Windows        []Window         `json:"windows"`
	Limits         []Policy         `json:"limits"`
	FinishInside   bool             `json:"finish_inside"`
	OpensAt        *Time            `json:"opens_at" nullable:"true" doc:"Start of the current or the next opening of its windows; null: always open"`
	ClosesAt       *Time            `json:"closes_at" nullable:"true"`
	MaxAttempts    int              `json:"max_attempts"`
	RetryOn        []string         `json:"retry_on"`
	RetryBackoffMS int64            `json:"retry_backoff_ms"`
	OnLost         string           `json:"on_lost"`
	LeaseMS        int64            `json:"lease_ms" doc:"0: the lease of the pool"`
	MaxRunMS       int64            `json:"max_run_ms" doc:"0: one hour"`
	Abort          *Abort           `json:"abort,omitempty"`
	PausedBy       string           `json:"paused_by" doc:"Empty: not paused"`
	PausedAt       *Time            `json:"paused_at" nullable:"true"`
	PauseReason    string           `json:"pause_reason"`
	Created        Time             `json:"created_at"`
	Payload        json.RawMessage  `json:"payload,omitempty" doc:"Only in the reply for a single batch; absent: no payload"`
	Total          int64            `json:"total"`
	Counts         map[string]int64 `json:"counts" doc:"Number of tasks per state; the sum is total"`
	RatePerMinute  *float64         `json:"rate_per_minute" nullable:"true" doc:"Tried tasks that ended per minute, over the last 5 min or since the batch began; null: it has not begun"`
	ETA            *Time            `json:"eta" nullable:"true" doc:"Expected end of its last task at this rate; null: unknown"`
}

// EndedTasks returns the number of tasks in a final state.
func (b Batch) EndedTasks() int64 { return b.Total - b.Counts[Pending] - b.Counts[Dispatched] }

// FailedTasks returns the number of tasks that ended as failed or timed_out. Cancelled, expired and suppressed tasks are not counted.
func (b Batch) FailedTasks() int64 { return b.Counts[Failed] + b.Counts[TimedOut] }

// ShownState returns the state of the batch for people. If the batch is running and none of its tasks runs, the state is "waiting".
// Otherwise the state is the field Condition.
func (b Batch) ShownState() string {
	if b.Condition == "running" && b.Counts[Dispatched] == 0 {
		return "waiting"
	}
	return b.Condition
}

// ShownETA returns the expected end of the batch for people. If the end is unknown, it returns nil. If none of the tasks runs, it returns
// nil, too, because the waiting tasks may be unable to start.
func (b Batch) ShownETA() *Time {
	if b.ShownState() == "waiting" {
		return nil
	}
	return b.ETA
}

// HasEnded reports whether the batch has ended.
func (b Batch) HasEnded() bool { return b.State == "finished" || b.State == "cancelled" }

// BatchChanged is a batch after a change of its settings.
type BatchChanged struct {
	Batch
	WarningList
}

// BatchList is a page of batches.
type BatchList struct {
	Batches       []Batch `json:"batches"`
	NextPageToken string  `json:"next_page_token,omitempty"`
}

// BatchPatch changes some settings of a batch.
type BatchPatch struct {
	Priority    Change[int]       `json:"priority,omitzero" nullable:"true" minimum:"-1000000" maximum:"1000000" doc:"Priority of its tasks without their own priority" flag:"priority of the tasks that have none of their own; higher first"`
	Weight      Change[int]       `json:"weight,omitzero" nullable:"true" minimum:"1" maximum:"1000" doc:"In effect with the next report" flag:"share of the pool's slots relative to other waiting batches, 1 to 1000"`
	Lane        Change[string]    `json:"lane,omitzero" nullable:"true" enum:"normal,urgent" doc:"In effect with the next report; held slots stay held" flag:"urgent: before all other batches of the pool, up to a share of its slots; or normal"`
	NotAfter    Change[time.Time] `json:"not_after,omitzero" nullable:"true" doc:"null: never. An expired batch stays expired" flag:"tasks that still wait at this time expire: 2027-01-31T22:00:00Z"`
	MaxWaitMS   Change[int64]     `json:"max_wait_ms,omitzero" nullable:"true" minimum:"1" maximum:"7776000000" doc:"null: no limit. Expired tasks stay expired" flag:"tasks that did not start within this time expire: 30m; it counts from the creation of the batch, or from a later not-before time"`
	Windows     Change[[]Window]  `json:"windows,omitzero" nullable:"true" doc:"The complete list; null or empty: always open" flag:"when tasks may start: \"0 1 * * * 4h Asia/Shanghai\" is cron, duration, time zone (UTC if left out); may be repeated"`
	Limits      Change[[]Policy]  `json:"limits,omitzero" nullable:"true" doc:"The complete list, in addition to the limits of the pool; in effect with the next report" flag:"policies that limit how often tasks may start: a JSON list, or @FILE with one"`
	MaxAttempts Change[int]       `json:"max_attempts,omitzero" nullable:"true" minimum:"1" maximum:"100" doc:"In effect from the next attempt that ends" flag:"maximum attempts of each task, 1 to 100; applies to attempts that end after the change"`
}

// BatchFilter selects batches. An empty field matches all batches.
type BatchFilter struct {
	Name string `query:"name" maxLength:"200" doc:"Part of the name; case is ignored" flag:"only batches whose name contains this text, ignoring case"`
	Lane string `query:"lane" enum:"normal,urgent" flag:"only batches of this lane: normal or urgent"`
	Pool string `query:"pool" doc:"Excludes the filters name, lane and kind" flag:"only batches of this pool"`
	Kind string `query:"kind" maxLength:"64" doc:"Excludes the other filters" flag:"only batches of this kind"`

	State string `query:"state" enum:"open,running,paused,scheduled,cancelling,finished,cancelled" doc:"As in the field state, some seconds late; open: not ended. Only alone or with pool" flag:"only batches in this state: open, running, paused, scheduled, cancelling, finished, cancelled; open: not ended"`
	Sort  string `query:"sort" enum:"newest,failed,ended" default:"newest" doc:"failed: the batches with failed or timed-out tasks, most of these first; ended: the batches that have ended, the latest end first. Both only alone or with pool" flag:"newest first; failed: only batches with failures, most of these first; ended: only batches that have ended, the latest end first (default \"newest\")"`
}

// Batches has the calls about batches.
type Batches struct {
	client *Client

	Results      CallWith[int64, ResultQuery, Results]     `op:"GET /v1/batches/{id}/results" id:"listResults" role:"viewer" doc:"List the results of a batch by task number, and summarize them"`
	Failures     CallWith[int64, FailureQuery, Failures]   `op:"GET /v1/batches/{id}/failures" id:"getBatchFailures" role:"viewer" doc:"Count the attempts of a batch that failed, by tags and attributes of their devices"`
	_            struct{}                                  `op:"POST /v1/batches" id:"createBatch" scope:"input" role:"operator" status:"201" once:"true" doc:"Queue tasks"`
	List         List[BatchFilter, Batch]                  `op:"GET /v1/batches" id:"listBatches" scope:"input" role:"viewer" doc:"List batches, by default newest first"`
	Get          Call[int64, Batch]                        `op:"GET /v1/batches/{id}" id:"getBatch" role:"viewer" doc:"Read a batch and its counts"`
	Change       CallWith[int64, BatchPatch, BatchChanged] `op:"PATCH /v1/batches/{id}" id:"patchBatch" role:"operator" doc:"Change a batch; absent fields stay, null restores the default"`
	Pause        CallWith[int64, PauseReason, Batch]       `op:"POST /v1/batches/{id}/pause" id:"pauseBatch" role:"operator" doc:"Pause a batch: its tasks get no new grants; dispatched tasks continue"`
	Resume       Call[int64, Batch]                        `op:"POST /v1/batches/{id}/resume" id:"resumeBatch" role:"operator" doc:"End the pause of a batch"`
	Cancel       Call[int64, Batch]                        `op:"POST /v1/batches/{id}/cancel" id:"cancelBatch" role:"operator" doc:"Cancel a batch; the devices of its dispatched tasks are asked to stop"`
	Waiting      CallWith[int64, WaitingSample, Waiting]   `op:"GET /v1/batches/{id}/waiting" id:"getBatchWaiting" role:"viewer" doc:"Summarize why the tasks of a batch wait, grouped by reason"`
	WaitingTasks ListOf[int64, ReasonFilter, WaitingTask]  `op:"GET /v1/batches/{id}/waiting/tasks" id:"listBatchWaiting" role:"viewer" doc:"List the waiting tasks of a batch, each with its first reason"`
}

// Create queues a batch completely or not at all. mode can make it a dry run. The batch is queued once even if the request is sent several
// times. See WithKey.
func (c Batches) Create(ctx context.Context, batch NewBatch, mode QueueMode) (BatchCreated, error) {
	return callJSON[BatchCreated](ctx, c.client, c.client.prepareRequest(ctx, "createBatch", batch, queryParams(mode)))
}

// Stream is like Create, with tasks in CSV or NDJSON (mediaType is TypeCSV or TypeNDJSON). Each time the request is sent, Stream calls
// openTasks, which must return the tasks from the beginning. Devices, Tasks and Select of batch must be empty.
func (c Batches) Stream(ctx context.Context, batch NewBatch, mode QueueMode, mediaType string, openTasks func() (io.ReadCloser, error)) (BatchCreated, error) {
	request := c.client.prepareRequest(ctx, "createBatch", queryParams(mode))
	request.OpenBody, request.ContentType = openTasks, mediaType
	if err := AddToQuery(batch, request.Query); err != nil {
		return BatchCreated{}, err
	}
	return callJSON[BatchCreated](ctx, c.client, request)
}

// AddToQuery adds the fields of batch, a struct with the JSON fields of NewBatch, to query. It writes strings without quotes and all other
// values as JSON, as the requests with streamed tasks require.
func AddToQuery(batch any, query url.Values) error {
	text, err := json.Marshal(batch)
	if err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	for name, value := range fields {
		var plain string
		if json.Unmarshal(value, &plain) != nil {
			plain = string(value)
		}
		query.Set(name, plain)
	}
	return nil
}
