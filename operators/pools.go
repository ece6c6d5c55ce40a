package operators

import (
	"context"
	"strconv"
)

// Pool has the settings of a pool, and when they were changed.
type Pool struct {
	Name            string   `json:"name" readOnly:"true"`
	Capacity        int      `json:"capacity" minimum:"0" maximum:"10000" doc:"Number of slots: devices that may use the external system at once"`
	LeaseMS         int64    `json:"lease_ms" doc:"How long a device may hold a slot before it must renew"`
	Paused          bool     `json:"paused" doc:"true: the pool makes no new grants"`
	PausedBy        string   `json:"paused_by" readOnly:"true" doc:"Empty: not paused"`
	PausedAt        *Time    `json:"paused_at" readOnly:"true" nullable:"true"`
	PauseReason     string   `json:"pause_reason" readOnly:"true"`
	Callers         *int     `json:"callers" nullable:"true" doc:"Maximum number of slots that callers hold; null: the capacity"`
	LongestLeaseMS  int64    `json:"longest_lease_ms" doc:"The longest lease that a caller may request"`
	LongestSleepMS  int64    `json:"longest_sleep_ms" doc:"The longest time until a device far back in the queue is asked to report again"`
	Limits          []Policy `json:"limits" doc:"How often tasks may start"`
	Windows         []Window `json:"windows" doc:"When tasks may start; empty: always"`
	OpensAt         *Time    `json:"opens_at" readOnly:"true" nullable:"true" doc:"Start of the current or the next opening of its windows; null: always open"`
	ClosesAt        *Time    `json:"closes_at" readOnly:"true" nullable:"true"`
	StandstillUntil *Time    `json:"stands_until" readOnly:"true" nullable:"true" doc:"End of the standstill after a restore of the ledger: no grant is made before; null: no standstill"`
	Version         int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created         Time     `json:"created_at" readOnly:"true"`
	Updated         Time     `json:"updated_at" readOnly:"true"`
}

// PoolState is a pool and its current state, from one snapshot.
type PoolState struct {
	Pool

	Held    int   `json:"held" readOnly:"true" doc:"Slots held now"`
	Waiting int   `json:"waiting" readOnly:"true" doc:"Devices that have a task which could start now, but no slot; counted up to 1000, or up to 10 on a page of more than 100 pools"`
	Oldest  *Time `json:"oldest_pending_at" readOnly:"true" nullable:"true" doc:"Creation time of the batch with the oldest pending task; null: no task is pending"`
	PoolTrouble
}

// PoolTrouble reports the problems of a pool, computed from the stored counts.
type PoolTrouble struct {
	Pending int64    `json:"pending_tasks" readOnly:"true" doc:"Tasks that wait, for any reason; dispatched tasks are not counted"`
	Trouble []string `json:"trouble" readOnly:"true" enum:"over_capacity,failing,stalled,paused,no_slots,closed" doc:"Known trouble of the pool, worst first; empty: none"`
}

// The kinds of trouble that a pool can have.
const (
	TroubleOverCapacity = "over_capacity" // more slots are held than the capacity, because the capacity was lowered
	TroubleFailing      = "failing"       // many attempts failed within the last 5 min
	TroubleStalled      = "stalled"       // no grant for 10 min, although slots are free and batch and windows allow the oldest waiting task to start
	TroublePaused       = "paused"        // the pool is paused and has waiting tasks
	TroubleNoSlots      = "no_slots"      // the capacity is 0 and the pool has waiting tasks
	TroubleClosed       = "closed"        // the windows are closed and the pool has waiting tasks
)

// PoolTroubles returns all kinds of trouble, worst first.
func PoolTroubles() []string {
	return []string{TroubleOverCapacity, TroubleFailing, TroubleStalled, TroublePaused, TroubleNoSlots, TroubleClosed}
}

// PoolFilter selects pools and sets their order.
type PoolFilter struct {
	Name        string `query:"name" maxLength:"64" pattern:"^[A-Za-z0-9._:-]*$" doc:"Part of the name; case is ignored" flag:"only pools whose name contains this text, ignoring case"`
	Sort        string `query:"sort" enum:"name,held,waiting,trouble" default:"name" doc:"name: by name; held: largest share of held slots first; waiting: most waiting tasks first; trouble: worst trouble first" flag:"name (default); held: largest share of held slots first; waiting: most waiting tasks first; trouble: worst trouble first"`
	OnlyTrouble bool   `query:"only_trouble" doc:"true: only pools with trouble" flag:"only pools with trouble"`
}

// PoolTotals has the sums over all pools, from one snapshot.
type PoolTotals struct {
	Pools     int   `json:"pools"`
	Capacity  int64 `json:"capacity"`
	Held      int64 `json:"held" doc:"Slots held now"`
	Pending   int64 `json:"pending_tasks" doc:"Tasks that wait, for any reason"`
	InTrouble int   `json:"pools_in_trouble" doc:"Pools with any trouble"`
}

// PoolChanged is a pool after a change.
type PoolChanged struct {
	Pool
	WarningList
}

// PoolsChanged has the number of pools that one request changed.
type PoolsChanged struct {
	Pools         int    `json:"pools" doc:"Number of pools that were paused or resumed, or would be; other pools needed no change"`
	Stopping      int    `json:"stopping,omitempty" doc:"Number of devices that were asked to stop; in a dry run, the number of held slots, with those of callers"`
	NextPageToken string `json:"next_page_token,omitempty" doc:"Present if there are more pools: repeat the request with it"`
}

// PoolList is a page of pools.
type PoolList struct {
	Pools         []PoolState `json:"pools"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

// PoolSettings has all settings of a pool that an operator can set. Capacity must be given. Package api replaces each other setting
// that is missing by its default. Pool and PoolPatch have the same settings.
type PoolSettings struct {
	Capacity       int      `json:"capacity" minimum:"0" maximum:"10000" flag:"number of slots: how many devices and callers may hold one at once"`
	LeaseMS        *int64   `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" default:"300000" flag:"how long a device may hold a slot before it must renew (default 5m)"`
	Paused         *bool    `json:"paused,omitempty" default:"false" flag:"grant nothing new"`
	Callers        *int     `json:"callers,omitempty" nullable:"true" minimum:"0" maximum:"10000" doc:"Maximum number of slots that callers hold; 0: none. Default: the capacity"`
	LongestLeaseMS *int64   `json:"longest_lease_ms,omitempty" minimum:"1" maximum:"86400000" default:"86400000" doc:"The longest lease that a caller may request; a request without a length gets the lease of the pool" flag:"the longest lease that a caller may ask for (default 24h)"`
	LongestSleepMS *int64   `json:"longest_sleep_ms,omitempty" minimum:"1" maximum:"86400000" default:"600000" doc:"The longest time until a device far back in the queue is asked to report again; devices near the front report sooner" flag:"the longest time until a device far back in the queue is asked to report again (default 10m)"`
	Limits         []Policy `json:"limits,omitempty" nullable:"true" doc:"How often tasks may start; empty: no limit except the slots" flag:"policies that limit how often tasks may start: a JSON list, or @FILE with one"`
	Windows        []Window `json:"windows,omitempty" nullable:"true" doc:"When tasks may start; empty: always" flag:"when tasks may start: \"0 1 * * * 4h Asia/Shanghai\" is cron, duration, time zone (UTC if left out); may be repeated"`
}

// PoolPatch changes some settings of a pool.
type PoolPatch struct {
	Capacity       Change[int]      `json:"capacity,omitzero" nullable:"true" minimum:"0" maximum:"10000" doc:"Has no default: null is refused"`
	LeaseMS        Change[int64]    `json:"lease_ms,omitzero" nullable:"true" minimum:"1" maximum:"86400000"`
	Paused         Change[bool]     `json:"paused,omitzero" nullable:"true"`
	Callers        Change[int]      `json:"callers,omitzero" nullable:"true" minimum:"0" maximum:"10000" doc:"Maximum number of slots that callers hold; null: the capacity"`
	LongestLeaseMS Change[int64]    `json:"longest_lease_ms,omitzero" nullable:"true" minimum:"1" maximum:"86400000" doc:"The longest lease that a caller may request"`
	LongestSleepMS Change[int64]    `json:"longest_sleep_ms,omitzero" nullable:"true" minimum:"1" maximum:"86400000" doc:"The longest time until a device far back in the queue is asked to report again"`
	Windows        Change[[]Window] `json:"windows,omitzero" nullable:"true" doc:"The complete list; null or empty: always open"`
	Limits         Change[[]Policy] `json:"limits,omitzero" nullable:"true" doc:"The complete list; null or empty: no limit except the slots"`
}

// Window is a recurring period in which tasks may start.
type Window struct {
	Cron     string `json:"cron" doc:"Minute, hour, day of month, month, day of week"`
	Duration string `json:"duration" doc:"How long the window stays open after each cron time: 1m to 168h, such as 4h or 90m"`
	Timezone string `json:"timezone,omitempty" doc:"IANA name; default UTC"`
}

// PauseReason is the body of a request to pause.
type PauseReason struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Shown to people who ask why nothing runs"`
}

// PauseAll is the body of a request to pause all pools.
type PauseAll struct {
	PauseReason

	StopRunning bool `json:"stop_running,omitempty" doc:"Also ask the devices that hold a slot to stop; their tasks wait again"`
}

// Slots has the slots of a pool, from one snapshot.
type Slots struct {
	Pool     string `json:"pool"`
	Capacity int    `json:"capacity"`
	Held     int    `json:"held"`
	Reserved int    `json:"reserved" doc:"Slots reserved for devices that were asked to report"`
	Waiting  int    `json:"waiting" doc:"Devices that have a task which could start now, but no slot; counted up to 1000"`
	Oldest   *Time  `json:"oldest_pending_at" nullable:"true" doc:"Creation time of the batch with the oldest pending task; null: no task is pending"`
	Slots    []Slot `json:"slots" doc:"The slots 0 to capacity - 1, and higher slots that are still held after the capacity was lowered"`
}

// Slot is one slot of a pool.
type Slot struct {
	Slot       int    `json:"slot"`
	State      string `json:"state" enum:"free,held,reserved"`
	Device     string `json:"device,omitempty"`
	Caller     string `json:"caller,omitempty" doc:"Of a lease of a caller: the names of its token and holder; device is the same behind a mark that no device has"`
	Task       int64  `json:"task,omitempty"`
	Token      int64  `json:"token,omitempty"`
	Batch      int64  `json:"batch,omitempty"`
	Since      *Time  `json:"since,omitempty"`
	LeaseUntil *Time  `json:"lease_until,omitempty" doc:"End of the lease. In the past: the slot is about to be taken back"`
	Cancel     string `json:"cancel,omitempty" doc:"Why the device is asked to stop"`
}

// Release is the request to take a slot back from its holder.
type Release struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"For the audit log"`
	AtOnce bool   `json:"now,omitempty" doc:"true: frees the slot at once, although the device may continue until its lease ends"`
	Token  int64  `json:"token,omitempty" minimum:"1" maximum:"9007199254740991" doc:"Fencing token of the grant to release; absent: the current grant of the slot"`
}

// GrantCheck reports whether a grant is in force.
type GrantCheck struct {
	InForce bool   `json:"alive" doc:"The grant is in force"`
	Device  string `json:"device,omitempty"`
	Slot    *int   `json:"slot,omitempty"`
	LeaseMS int64  `json:"lease_ms" doc:"Time until the lease ends; 0: not alive"`
}

// LimitedSubject is a subject whose starts were refused by a policy.
type LimitedSubject struct {
	Policy   string `json:"policy"`
	Subject  string `json:"subject" doc:"The subject that is counted; values of a payload only as a digest, unless the policy reveals them"`
	Refusals int64  `json:"times" doc:"Refusals in the current and the previous hour (UTC); for rare subjects the number can be too high, never too low"`
}

// LimitedQuery limits the number of subjects.
type LimitedQuery struct {
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"20" doc:"Maximum number of entries" flag:"number of subjects to show, 1 to 200 (default 20)"`
}

// LimitedList has the subjects with the most refusals.
type LimitedList struct {
	Limited []LimitedSubject `json:"limited"`
}

// Pools has the calls about pools, their slots and grants.
type Pools struct {
	client *Client

	List         List[PoolFilter, PoolState]                 `op:"GET /v1/pools" id:"listPools" role:"viewer" doc:"List pools by name, share of held slots, waiting tasks or trouble"`
	Totals       Call[All, PoolTotals]                       `op:"GET /v1/totals" id:"getTotals" role:"viewer" doc:"Read the totals over all pools"`
	Get          Call[string, Pool]                          `op:"GET /v1/pools/{pool}" id:"getPool" role:"viewer" doc:"Read a pool"`
	Put          CallWith[string, PoolSettings, PoolChanged] `op:"PUT /v1/pools/{pool}" id:"putPool" role:"admin" doc:"Create a pool or replace its settings"`
	Change       CallWith[string, PoolPatch, PoolChanged]    `op:"PATCH /v1/pools/{pool}" id:"patchPool" role:"admin" doc:"Change a pool; absent fields stay, null restores the default"`
	Delete       Remove[string]                              `op:"DELETE /v1/pools/{pool}" id:"deletePool" role:"admin" status:"204" doc:"Delete a pool that has no open tasks"`
	Pause        CallWith[string, PauseReason, Pool]         `op:"POST /v1/pools/{pool}/pause" id:"pausePool" role:"admin" doc:"Pause a pool: it makes no new grants; dispatched tasks continue"`
	Resume       Call[string, Pool]                          `op:"POST /v1/pools/{pool}/resume" id:"resumePool" role:"admin" doc:"End the pause of a pool"`
	Slots        Call[string, Slots]                         `op:"GET /v1/pools/{pool}/slots" id:"getSlots" role:"viewer" doc:"List the holders of the slots"`
	History      ListOf[string, HistoryFilter, Holding]      `op:"GET /v1/pools/{pool}/history" id:"listHistory" role:"viewer" doc:"List the past and present holders of the slots, and how each grant ended"`
	Series       CallWith[string, SeriesQuery, Series]       `op:"GET /v1/pools/{pool}/series" id:"getSeries" role:"viewer" doc:"Read how many slots of a pool were held over time"`
	Failures     CallWith[string, FailureQuery, Failures]    `op:"GET /v1/pools/{pool}/failures" id:"getPoolFailures" role:"viewer" doc:"Count the attempts of a pool that failed, by tags and attributes of their devices"`
	Waiting      CallWith[string, WaitingSample, Waiting]    `op:"GET /v1/pools/{pool}/waiting" id:"getPoolWaiting" role:"viewer" doc:"Summarize why the tasks of a pool wait, grouped by reason"`
	WaitingTasks ListOf[string, ReasonFilter, WaitingTask]   `op:"GET /v1/pools/{pool}/waiting/tasks" id:"listPoolWaiting" role:"viewer" doc:"List the waiting tasks of a pool, each with its first reason"`
	CheckGrant   CallWith[string, int64, GrantCheck]         `op:"GET /v1/pools/{pool}/grants/{token}" id:"checkGrant" role:"verifier" doc:"Check for the external system whether a grant is in force"`
	Limited      CallWith[string, LimitedQuery, LimitedList] `op:"GET /v1/pools/{pool}/limited" id:"getLimited" role:"viewer" doc:"List the subjects that the policies of a pool and its batches refused most"`
	Usage        CallWith[string, UsageQuery, Usage]         `op:"GET /v1/pools/{pool}/usage" id:"getUsageOfPool" role:"viewer" doc:"Read the usage of the policies of a pool"`

	_ struct{} `op:"POST /v1/pools/pause" id:"pausePools" role:"admin" doc:"Pause all pools, one page per request; dispatched tasks continue"`
	_ struct{} `op:"POST /v1/pools/resume" id:"resumePools" role:"admin" doc:"End the pauses of all pools that this operator paused, one page per request"`
	_ struct{} `op:"POST /v1/pools/{pool}/slots/{slot}/release" id:"releaseSlot" role:"admin" doc:"Take a slot back from its holder"`
}

// PauseAll pauses all pools that are not paused, up to 1,000 in each request. It returns the sums of all responses, even if it returns an
// error. If dryRun is true, it only counts the pools.
func (c Pools) PauseAll(ctx context.Context, pause PauseAll, dryRun bool) (PoolsChanged, error) {
	return c.changeAll(ctx, "pausePools", pause, dryRun)
}

// ResumeMine ends the pauses of all pools that the owner of the token paused. The results and dryRun have the same meaning as in PauseAll.
func (c Pools) ResumeMine(ctx context.Context, dryRun bool) (PoolsChanged, error) {
	return c.changeAll(ctx, "resumePools", nil, dryRun)
}

// changeAll sends the requests of operationID, an operation on all pools, and returns the sums of the responses.
func (c Pools) changeAll(ctx context.Context, operationID string, body any, dryRun bool) (sum PoolsChanged, err error) {
	request := c.client.prepareRequest(ctx, operationID, body, Query("dry_run", strconv.FormatBool(dryRun), "page_size", "1000"))
	for {
		done, err := callJSON[PoolsChanged](ctx, c.client, request)
		sum.Pools, sum.Stopping = sum.Pools+done.Pools, sum.Stopping+done.Stopping
		if err != nil || done.NextPageToken == "" {
			return sum, err
		}
		request.Query.Set("page_token", done.NextPageToken)
	}
}

// ReleaseSlot takes a slot back from its holder and returns the new state of the slot. The parameter release has the reason, and whether
// the slot is freed at once.
func (c Pools) ReleaseSlot(ctx context.Context, pool string, slot int, release Release) (Slot, error) {
	return callJSON[Slot](ctx, c.client, c.client.prepareRequest(ctx, "releaseSlot", pool, slot, release))
}
