package operators_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// checkBatches queues tasks in all forms of a batch. It returns the batch whose tasks the test reads later.
func (c *checkedClient) checkBatches() int64 {
	counted, err := c.Batches.Create(c.ctx, operators.NewBatch{Pool: "c", Select: &operators.Selection{Tags: map[string]string{"area": "sh"}}}, operators.QueueMode{DryRun: true})
	c.expectResponse("Create batch", counted, err)
	if counted.ID != 0 || counted.Tasks != 1 {
		c.Errorf("a dry run: %+v", counted)
	}
	backoff, inside, later := int64(5), false, time.Now().Add(time.Hour).Truncate(time.Millisecond)
	made, err := c.Batches.Create(c.ctx, operators.NewBatch{
		Name: "all", Pool: "c", Kind: "k", Payload: json.RawMessage(`{"a":1}`), Weight: 2, NotAfter: &later, FinishInside: &inside, MaxAttempts: 2,
		RetryOn: []string{operators.Failed}, RetryBackoffMS: &backoff, OnLost: "fail", Abort: &operators.Abort{Failure: 0.5, Min: 3}, Duplicates: "skip",
		Tasks: []operators.NewTask{{Device: "c-1", Payload: json.RawMessage(`{"b":2}`)}, {Device: "c-1", Payload: json.RawMessage(`{"b":2}`)}, {Device: "nobody"}},
	}, operators.QueueMode{})
	c.expectResponse("Create batch", made, err)
	if made.Skipped == nil || *made.Skipped != 1 || made.Unknown == nil || made.Unknown.First != "nobody" {
		c.Errorf("%+v", made)
	}
	streamed, err := c.Batches.Stream(c.ctx, operators.NewBatch{Pool: "c", NotBefore: &later, RetryOn: []string{operators.TimedOut}}, operators.QueueMode{UnknownDevices: "refuse"},
		operators.TypeNDJSON, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(`{"device":"c-2"}`)), nil })
	c.expectResponse("Stream batch", streamed, err)
	batch, err := c.Batches.Get(c.ctx, streamed.ID)
	c.expectResponse("Batch", batch, err)
	if batch.State != "scheduled" || !batch.NotBefore.Equal(later) || len(batch.RetryOn) != 1 || batch.EndedTasks() != 0 || batch.HasEnded() {
		c.Errorf("%+v", batch)
	}
	changed, err := c.Batches.Change(c.ctx, made.ID, operators.BatchPatch{Weight: operators.Set(7), NotAfter: operators.Default[time.Time]()})
	c.expectResponse("Change batch", changed, err)
	if changed.Weight != 7 || changed.NotAfter != nil || changed.Abort == nil {
		c.Errorf("%+v", changed)
	}
	paused, err := c.Batches.Pause(c.ctx, streamed.ID, operators.PauseReason{Reason: "later"})
	c.expectResponse("Pause batch", paused, err)
	resumed, err := c.Batches.Resume(c.ctx, streamed.ID)
	c.expectResponse("Resume batch", resumed, err)
	waiting, err := c.Batches.Waiting(c.ctx, made.ID, operators.WaitingSample{})
	c.expectResponse("Waiting of a batch", waiting, err)
	ofPool, err := c.Pools.Waiting(c.ctx, "c", operators.WaitingSample{SampleSize: 200})
	c.expectResponse("Waiting of a pool", ofPool, err)
	c.expectResponse("Tasks of a pool that wait", collectAll(c.T, c.Pools.WaitingTasks(c.ctx, "c", operators.ReasonFilter{Code: waiting.Parts[0].Code})), nil)
	each := collectAll(c.T, c.Batches.WaitingTasks(c.ctx, made.ID, operators.ReasonFilter{}))
	c.expectResponse("Tasks of a batch that wait", each, nil)
	if waiting.Total != 2 || waiting.Sampled || len(waiting.Parts) == 0 || len(each) != 2 || each[0].Code == "" {
		c.Errorf("%+v, %+v", waiting, each)
	}
	failures, err := c.Pools.Failures(c.ctx, "c", operators.FailureQuery{By: []string{"tags.area", "attributes.firmware"}, Since: later.Add(-24 * time.Hour)})
	c.expectResponse("Failures of a pool", failures, err)
	failures, err = c.Batches.Failures(c.ctx, made.ID, operators.FailureQuery{})
	c.expectResponse("Failures of a batch", failures, err)
	c.expectResponse("Batches", collectAll(c.T, c.Batches.List(c.ctx, operators.BatchFilter{})), nil)
	found, err := c.Search.Find(c.ctx, operators.FindQuery{Text: "c-1"})
	c.expectResponse("Find", found, err)
	if len(found.Exact.Hits) != 1 || found.Exact.Hits[0].ID != "c-1" {
		c.Errorf("%+v", found)
	}
	return made.ID
}

func (c *checkedClient) checkTasks(batch int64) {
	made, err := c.Devices.RotateToken(c.ctx, "c-1", operators.Rotation{OverlapMS: new(int64(0))})
	must.Succeed(c, err)
	c.sendReport("c-1", made.Token) // the device gets the grant of its task
	tasks := collectAll(c.T, c.Tasks.List(c.ctx, operators.TaskFilter{Batch: batch}))
	c.expectResponse("Tasks", tasks, nil)
	running, err := c.Tasks.Get(c.ctx, tasks[0].ID)
	c.expectResponse("Task", running, err)
	if running.State != operators.Dispatched || running.Grant == nil || !running.IsOpen() || string(running.Payload) != `{"a":1,"b":2}` {
		c.Errorf("%+v", running)
	}
	why, err := c.Tasks.Why(c.ctx, tasks[1].ID)
	c.expectResponse("Why", why, err)
	cancelled, err := c.Tasks.Cancel(c.ctx, tasks[1].ID)
	c.expectResponse("Cancel task", cancelled, err)
	retried, err := c.Tasks.Retry(c.ctx, tasks[1].ID)
	c.expectResponse("Retry task", retried, err)
	bulk, err := c.Tasks.CancelAll(c.ctx, operators.TaskFilter{Batch: batch, State: operators.Pending}, true)
	c.expectResponse("Cancel tasks", bulk, err)
	again, err := c.Tasks.RetryAll(c.ctx, operators.TaskFilter{Batch: batch}, false)
	c.expectResponse("Retry tasks", again, err)
	results, err := c.Batches.Results(c.ctx, batch, operators.ResultQuery{State: operators.Cancelled, Fields: []string{"a"}, Aggregate: "a", ByTag: "area", Sample: 10})
	c.expectResponse("Results", results, err)
	if cancelled.State != operators.Cancelled || retried.State != operators.Pending || bulk.Tasks != 1 || again.Tasks != 0 {
		c.Errorf("%s, %s, %+v, %+v", cancelled.State, retried.State, bulk, again)
	}
}

func (c *checkedClient) checkSlots() {
	slots, err := c.Pools.Slots(c.ctx, "c")
	c.expectResponse("Slots", slots, err)
	held := slots.Slots[0]
	if slots.Held != 1 || held.State != "held" || held.Since == nil {
		c.Fatalf("%+v", slots)
	}
	grant, err := c.Pools.CheckGrant(c.ctx, "c", held.Token)
	c.expectResponse("CheckGrant", grant, err)
	free, err := c.Pools.ReleaseSlot(c.ctx, "c", held.Slot, operators.Release{Reason: "a test", AtOnce: true, Token: held.Token})
	c.expectResponse("Release slot", free, err)
	history := collectAll(c.T, c.Pools.History(c.ctx, "c", operators.HistoryFilter{Slot: strconv.Itoa(held.Slot), From: held.Since.Time}))
	c.expectResponse("History", history, nil)
	c.expectResponse("History of a device", collectAll(c.T, c.Devices.History(c.ctx, history[0].Device, operators.All{})), nil)
	if len(history) == 0 || history[0].Token != held.Token || history[0].EndedBy != "released" {
		c.Errorf("%+v", history)
	}
	if !grant.InForce || grant.Device != "c-1" || free.State != "free" {
		c.Errorf("%+v, %+v", grant, free)
	}
}

func (c *checkedClient) checkLeases() {
	held, err := c.Leases.Acquire(c.ctx, "c", operators.NewLease{Holder: "job-1", LeaseMS: 60_000, Metadata: json.RawMessage(`{"branch":"main"}`)}, time.Second)
	c.expectResponse("Acquire lease", held, err)
	c.expectResponse("Leases", collectAll(c.T, c.Leases.List(c.ctx, "c", operators.All{})), nil)
	read, err := c.Leases.Get(c.ctx, "c", held.Lease)
	c.expectResponse("Lease", read, err)
	renewed, err := c.Leases.Renew(c.ctx, "c", held.Lease, operators.LeaseRenewal{Token: held.Token, LeaseMS: 120_000})
	c.expectResponse("Renew lease", renewed, err)
	if held.State != operators.LeaseHeld || read.Token != held.Token || renewed.LeaseMS <= held.LeaseMS {
		c.Errorf("%+v, %+v, %+v", held, read, renewed)
	}
	for range 2 {
		if err := c.Leases.Release(c.ctx, "c", held.Lease, held.Token); err != nil {
			c.Errorf("Release lease: %v", err)
		}
	}
	if _, err := c.Leases.Renew(c.ctx, "c", held.Lease, operators.LeaseRenewal{Token: held.Token}); !operators.HasStatus(err, http.StatusConflict) {
		c.Errorf("renewed after its end: %v", err)
	}
}

func (c *checkedClient) checkProfilesAndTokens() {
	profile, err := c.Profiles.Put(c.ctx, "careful", operators.ProfileSettings{Limits: []operators.Policy{{Name: "same", Algorithm: "duplicate", PerMS: 1000, Max: 1}}})
	c.expectResponse("Put profile", profile, err)
	read, err := c.Profiles.Get(c.ctx, "careful")
	c.expectResponse("Profile", read, err)
	c.expectResponse("Profiles", collectAll(c.T, c.Profiles.List(c.ctx, operators.All{})), nil)
	if err := c.Profiles.Delete(c.ctx, "careful"); err != nil {
		c.Error(err)
	}
	c.checkLimitSets()
	end := time.Now().Add(time.Hour)
	caller, err := c.Tokens.Create(c.ctx, operators.NewToken{Name: "ci", Role: "caller", Pools: []string{"ci-*"}, LimitSets: []string{"sms-*", "x"}})
	c.expectResponse("Create token of a caller", caller, err)
	token, err := c.Tokens.Create(c.ctx, operators.NewToken{Name: "n", Role: "viewer", ExpiresAt: &end})
	c.expectResponse("Create token", token, err)
	c.expectResponse("Tokens", collectAll(c.T, c.Tokens.List(c.ctx, operators.All{})), nil)
	rotated, err := c.Tokens.Rotate(c.ctx, token.ID)
	c.expectResponse("Rotate", rotated, err)
	if rotated.ID != token.ID || rotated.Secret == "" || rotated.Secret == token.Secret {
		c.Errorf("rotated %+v, created %+v", rotated, token)
	}
	revoked, err := c.Tokens.Revoke(c.ctx, token.ID)
	c.expectResponse("Revoke token", revoked, err)
	if token.Secret == "" || token.Role != "viewer" || revoked.ID != token.ID {
		c.Errorf("%+v, %+v", token.Token, revoked)
	}
}

// checkDeletions cancels and deletes everything that the test has created.
func (c *checkedClient) checkDeletions(batch int64) {
	for _, one := range collectAll(c.T, c.Batches.List(c.ctx, operators.BatchFilter{})) {
		if one.Pool != "c" {
			continue
		}
		over, err := c.Batches.Cancel(c.ctx, one.ID)
		c.expectResponse("Cancel batch", over, err)
		for !over.HasEnded() && err == nil {
			_ = operators.Sleep(c.ctx, 20*time.Millisecond) // a pass cancels the waiting tasks
			over, err = c.Batches.Get(c.ctx, one.ID)
		}
		if err != nil || over.EndedTasks() != over.Total || over.ID == batch && over.FailedTasks() != 0 {
			c.Errorf("%+v", over)
		}
	}
	gone, err := c.Devices.Delete(c.ctx, "c-1", true)
	c.expectResponse("Delete device", gone, err)
	if err := c.Pools.Delete(c.ctx, "c"); err != nil {
		c.Error(err)
	}
	if _, err := c.Devices.Get(c.ctx, "c-1"); !operators.HasStatus(err, 404) {
		c.Errorf("a deleted device: %v", err)
	}
	if seals := collectAll(c.T, c.Events.Seals(c.ctx, -1)); len(seals) == 0 || seals[0].Hash != seals[0].Computed {
		c.Errorf("seals %+v", seals)
	}
	events := collectAll(c.T, c.Events.List(c.ctx, operators.EventFilter{Pool: "c"}))
	c.expectResponse("Events", events, nil)
	enough := errors.New("enough")
	first := operators.Event{}
	err = connect().Events.Follow(c.ctx, operators.EventFilter{Pool: "c"}, operators.LivePosition{LastID: "0"}, func(e operators.Event) error {
		first = e
		return enough
	})
	if !errors.Is(err, enough) || first != events[len(events)-1] {
		c.Errorf("%v: %+v, want %+v", err, first, events[len(events)-1])
	}
}
