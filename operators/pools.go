package operators

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
)

// Pool is a pool as its settings say.
type Pool struct {
	Name        string   `json:"name" readOnly:"true"`
	Capacity    int      `json:"capacity" minimum:"0" maximum:"10000" doc:"Devices inside at once"`
	LeaseMS     int64    `json:"lease_ms" doc:"How long a device may hold a slot before it must renew"`
	Paused      bool     `json:"paused" doc:"true: nothing new is granted"`
	PausedBy    string   `json:"paused_by" readOnly:"true" doc:"Empty: not paused"`
	PausedAt    *Time    `json:"paused_at" readOnly:"true" nullable:"true"`
	PauseReason string   `json:"pause_reason" readOnly:"true"`
	Callers     *int     `json:"callers" nullable:"true" doc:"Slots that callers hold at most; null: as many as there are"`
	LongestMS   int64    `json:"longest_lease_ms" doc:"The longest lease that a caller may ask for"`
	Limits      []Policy `json:"limits" doc:"How often tasks may start"`
	Windows     []Window `json:"windows" doc:"When tasks may start; none: always"`
	OpensAt     *Time    `json:"opens_at" readOnly:"true" nullable:"true" doc:"Of the opening of its windows that lasts, or the next; null: always open"`
	ClosesAt    *Time    `json:"closes_at" readOnly:"true" nullable:"true"`
	StandsUntil *Time    `json:"stands_until" readOnly:"true" nullable:"true" doc:"After a restore nothing is granted before; null: there is no such time"`
	Version     int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created     Time     `json:"created_at" readOnly:"true"`
	Updated     Time     `json:"updated_at" readOnly:"true"`
}

// PoolState is a pool and how it is now, in one reading.
type PoolState struct {
	Pool

	Held    int   `json:"held" readOnly:"true" doc:"Slots held now"`
	Waiting int   `json:"waiting" readOnly:"true" doc:"Devices with a task that could start now and no slot; counted up to 1000, on a page with more than 100 pools up to 10"`
	Oldest  *Time `json:"oldest_pending_at" readOnly:"true" nullable:"true" doc:"When the batch of its oldest pending task was created; null: none is pending"`
	PoolTrouble
}

// PoolTrouble is what is wrong with a pool, by the counts that are kept.
type PoolTrouble struct {
	Pending int64    `json:"pending_tasks" readOnly:"true" doc:"Tasks that wait, whatever for; not those that run"`
	Trouble []string `json:"trouble" readOnly:"true" enum:"over_capacity,stalled,paused,no_slots,closed" doc:"What is wrong with the pool, worst first; empty: nothing that is known"`
}

// The kinds of trouble that a pool can have.
const (
	OverCapacity = "over_capacity" // more is held than the capacity, after that was lowered
	Stalled      = "stalled"       // for 10 min slots were free, its oldest waiting task could start by its batch and windows, and nothing was granted
	Paused       = "paused"        // with tasks that wait
	NoSlots      = "no_slots"      // its capacity is 0, with tasks that wait
	Closed       = "closed"        // its windows are, with tasks that wait
)

// PoolTroubles are all of them, worst first.
func PoolTroubles() []string { return []string{OverCapacity, Stalled, Paused, NoSlots, Closed} }

// PoolFilter selects pools, and says which come first.
type PoolFilter struct {
	Name string `query:"name" maxLength:"64" pattern:"^[A-Za-z0-9._:-]*$" doc:"Part of their names; upper and lower case are the same"`
	Sort string `query:"sort" enum:"name,held,waiting,trouble" default:"name" doc:"By name; or first those with the largest share of their slots held, with the most tasks that wait, or with the worst trouble"`
	Only bool   `query:"only_trouble" doc:"Those with trouble"`
}

func (f PoolFilter) query() url.Values {
	q := Query("name", f.Name, "sort", f.Sort)
	if f.Only {
		q.Set("only_trouble", "true")
	}
	return q
}

// PoolTotals are all pools together, in one reading.
type PoolTotals struct {
	Pools    int   `json:"pools"`
	Capacity int64 `json:"capacity"`
	Held     int64 `json:"held" doc:"Slots held now"`
	Pending  int64 `json:"pending_tasks" doc:"Tasks that wait, whatever for"`
	Trouble  int   `json:"pools_in_trouble" doc:"Pools with any trouble"`
}

// PoolChanged is a pool after a change.
type PoolChanged struct {
	Pool
	Warned
}

// PoolList is a page of pools.
type PoolList struct {
	Pools         []PoolState `json:"pools"`
	NextPageToken string      `json:"next_page_token,omitempty"`
}

// PoolSettings are all that an operator decides of a pool. There is no default
// capacity.
type PoolSettings struct {
	Capacity  int      `json:"capacity" minimum:"0" maximum:"10000"`
	LeaseMS   *int64   `json:"lease_ms,omitempty" minimum:"1" maximum:"86400000" default:"300000"`
	Paused    *bool    `json:"paused,omitempty" default:"false"`
	Callers   *int     `json:"callers,omitempty" nullable:"true" minimum:"0" maximum:"10000" doc:"Slots that callers hold at most; 0: none. Default: as many as there are"`
	LongestMS *int64   `json:"longest_lease_ms,omitempty" minimum:"1" maximum:"86400000" default:"86400000" doc:"The longest lease that a caller may ask for; a lease that names no length has the pool's"`
	Limits    []Policy `json:"limits,omitempty" nullable:"true" doc:"How often tasks may start; none: as often as there are slots"`
	Windows   []Window `json:"windows,omitempty" nullable:"true" doc:"When tasks may start; none: always"`
}

// PoolPatch changes some settings of a pool.
type PoolPatch struct {
	Capacity  Change[int]      `json:"capacity,omitzero" nullable:"true" minimum:"0" maximum:"10000" doc:"It has no default: null is refused"`
	LeaseMS   Change[int64]    `json:"lease_ms,omitzero" nullable:"true" minimum:"1" maximum:"86400000"`
	Paused    Change[bool]     `json:"paused,omitzero" nullable:"true"`
	Callers   Change[int]      `json:"callers,omitzero" nullable:"true" minimum:"0" maximum:"10000" doc:"Slots that callers hold at most; null: as many as there are"`
	LongestMS Change[int64]    `json:"longest_lease_ms,omitzero" nullable:"true" minimum:"1" maximum:"86400000" doc:"The longest lease that a caller may ask for"`
	Windows   Change[[]Window] `json:"windows,omitzero" nullable:"true" doc:"All of them; null or none: always open"`
	Limits    Change[[]Policy] `json:"limits,omitzero" nullable:"true" doc:"All of them; null or none: as often as there are slots"`
}

// Window is when tasks may start, again and again.
type Window struct {
	Cron     string `json:"cron" doc:"Minute, hour, day of month, month, day of week"`
	Duration string `json:"duration" doc:"Open for that long after each firing: 4h, 90m; 1m to 168h"`
	Timezone string `json:"timezone,omitempty" doc:"IANA name; default UTC"`
}

// PauseReason is the body of a request to pause.
type PauseReason struct {
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"Shown where somebody asks why nothing runs"`
}

// Slots are the slots of a pool, in one reading.
type Slots struct {
	Pool     string `json:"pool"`
	Capacity int    `json:"capacity"`
	Held     int    `json:"held"`
	Reserved int    `json:"reserved" doc:"Kept for a device that was asked to report"`
	Waiting  int    `json:"waiting" doc:"Devices with a task that could start now and no slot; counted up to 1000"`
	Oldest   *Time  `json:"oldest_pending_at" nullable:"true" doc:"When the batch of its oldest pending task was created; null: none is pending"`
	Slots    []Slot `json:"slots" doc:"All of 0..capacity-1, and higher ones still held after the capacity was lowered"`
}

// Slot is one of them.
type Slot struct {
	Slot       int    `json:"slot"`
	State      string `json:"state" enum:"free,held,reserved"`
	Device     string `json:"device,omitempty"`
	Caller     string `json:"caller,omitempty" doc:"Of a lease of a caller: the names of its token and holder; device is the same behind a mark that no device has"`
	Task       int64  `json:"task,omitempty"`
	Token      int64  `json:"token,omitempty"`
	Batch      int64  `json:"batch,omitempty"`
	Since      *Time  `json:"since,omitempty"`
	LeaseUntil *Time  `json:"lease_until,omitempty" doc:"In the past: lapsed, about to be taken back"`
	Cancel     string `json:"cancel,omitempty" doc:"Why the device is asked to stop"`
}

// Release takes a slot back from its holder.
type Release struct {
	Reason string `json:"reason" minLength:"1" maxLength:"500" doc:"For the audit log"`
	Now    bool   `json:"now,omitempty" doc:"true: at once, though the device may go on until its lease ends"`
	Token  int64  `json:"token,omitempty" minimum:"1" maximum:"9007199254740991" doc:"Of the grant that is meant; else whichever holds the slot"`
}

// GrantCheck says whether a grant is in force.
type GrantCheck struct {
	Alive   bool   `json:"alive" doc:"The grant is in force"`
	Device  string `json:"device,omitempty"`
	Slot    *int   `json:"slot,omitempty"`
	LeaseMS int64  `json:"lease_ms" doc:"Until its lease ends; 0: not alive"`
}

// LimitedSubject is a subject that policies refused.
type LimitedSubject struct {
	Policy  string `json:"policy"`
	Subject string `json:"subject" doc:"The subject that is counted; values of a payload only as a digest, unless the policy reveals them"`
	Times   int64  `json:"times" doc:"Refusals in this hour of UTC and the one before; of rare ones too high at most"`
}

// LimitedList are those that were refused most.
type LimitedList struct {
	Limited []LimitedSubject `json:"limited"`
}

// Pools are the calls about pools, their slots and grants.
type Pools struct{ client *Client }

// List yields all pools that match, in the order of the filter.
func (c Pools) List(ctx context.Context, f PoolFilter) iter.Seq2[PoolState, error] {
	return listed[PoolState](ctx, c.client, Path("pools"), f.query())
}

// Totals adds up all pools.
func (c Pools) Totals(ctx context.Context) (PoolTotals, error) {
	return get[PoolTotals](ctx, c.client, Path("totals"), nil)
}

// Get reads a pool.
func (c Pools) Get(ctx context.Context, name string) (Pool, error) {
	return get[Pool](ctx, c.client, Path("pools", name), nil)
}

// Put creates a pool, or replaces its settings.
func (c Pools) Put(ctx context.Context, name string, s PoolSettings) (PoolChanged, error) {
	return send[PoolChanged](ctx, c.client, http.MethodPut, Path("pools", name), s)
}

// Change changes some settings of a pool.
func (c Pools) Change(ctx context.Context, name string, p PoolPatch) (PoolChanged, error) {
	return send[PoolChanged](ctx, c.client, http.MethodPatch, Path("pools", name), p)
}

// Delete deletes a pool of which nothing is open.
func (c Pools) Delete(ctx context.Context, name string) error {
	return c.client.Do(ctx, Request{Method: http.MethodDelete, Path: Path("pools", name)}, nil)
}

// Pause lets nothing more of a pool start; what runs goes on.
func (c Pools) Pause(ctx context.Context, name, reason string) (Pool, error) {
	return send[Pool](ctx, c.client, http.MethodPost, Path("pools", name, "pause"), PauseReason{reason})
}

// Resume ends the pause of a pool.
func (c Pools) Resume(ctx context.Context, name string) (Pool, error) {
	return send[Pool](ctx, c.client, http.MethodPost, Path("pools", name, "resume"), nil)
}

// Slots reads the holders of the slots of a pool.
func (c Pools) Slots(ctx context.Context, pool string) (Slots, error) {
	return get[Slots](ctx, c.client, Path("pools", pool, "slots"), nil)
}

// Waiting says what the tasks of a pool wait for, how many for what: of more than sample
// (0: 500) by a sample of so many.
func (c Pools) Waiting(ctx context.Context, pool string, sample int) (Waiting, error) {
	return get[Waiting](ctx, c.client, Path("pools", pool, "waiting"), Query("sample", numberIf(int64(sample))))
}

// WaitingTasks yields the tasks of a pool that wait, by batch and in its order, each with the
// first reason why; with a code only those that wait for that.
func (c Pools) WaitingTasks(ctx context.Context, pool, code string) iter.Seq2[WaitingTask, error] {
	return listed[WaitingTask](ctx, c.client, Path("pools", pool, "waiting", "tasks"), Query("code", code))
}

// ReleaseSlot takes a slot back from its holder.
func (c Pools) ReleaseSlot(ctx context.Context, pool string, slot int, r Release) (Slot, error) {
	return send[Slot](ctx, c.client, http.MethodPost, Path("pools", pool, "slots", strconv.Itoa(slot), "release"), r)
}

// CheckGrant says, for the external system, whether a grant is in force. A
// token of the role verifier is enough.
func (c Pools) CheckGrant(ctx context.Context, pool string, token int64) (GrantCheck, error) {
	return get[GrantCheck](ctx, c.client, Path("pools", pool, "grants", number(token)), nil)
}

// Limited are the subjects that the policies of a pool, its batches and profiles
// refused most, 1 to 200 of them.
func (c Pools) Limited(ctx context.Context, pool string, most int) ([]LimitedSubject, error) {
	list, err := get[LimitedList](ctx, c.client, Path("pools", pool, "limited"), Query("limit", strconv.Itoa(most)))
	return list.Limited, err
}
