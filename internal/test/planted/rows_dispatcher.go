package main

// dispatcherMistakes returns the planted mistakes in the handling of reports: in the decision, and in the folders
// waiters, policies, marks, seen, credentials and upkeep.
func dispatcherMistakes() []Mistake {
	in := func(room string) []string { return []string{"dispatcher/" + room, "dispatcher"} }
	return []Mistake{
		{
			Package: "dispatcher", Func: "reportHandling.recordResults",
			Old:    `failed = fmt.Errorf("%w: recording a result: %w", devices.ErrUnavailable, outcome.Err) continue`,
			New:    `failed = fmt.Errorf("%w: recording a result: %w", devices.ErrUnavailable, outcome.Err)`,
			Breaks: "a result that was not committed is acknowledged",
		},
		{
			Package: "dispatcher", Func: "certainlyChangedNothing",
			Old: `!panicked && !errors.Is(callErr, store.ErrOutcomeUnknown)`, New: `!panicked && callErr != store.ErrOutcomeUnknown`,
			Breaks: "a COMMIT whose outcome is unknown counts as failed, and the slot of the grant is freed",
		},
		{
			Package: "dispatcher", Func: "claimAll",
			Old: `> claimAge`, New: `> handleLimit`,
			Breaks: "a slot is claimed so late that reconciliation may have freed it",
		},
		{
			Package: "dispatcher", Func: "grantAttempt.grantUnderPolicies",
			Old: `} else { a.d.Policies.SettleReservations(`, New: `} else if err == nil { a.d.Policies.SettleReservations(`,
			Breaks: "a start that got no slot stays reserved in its policies",
		},
		{
			Package: "dispatcher", Func: "grantAttempt.claim",
			Old: `default: a.d.Waiters.Slots.ReleaseEndedLeases(ctx, slot.Pool, slot.LeaseID)`, New: `default:`,
			Breaks: "a slot whose claim was refused stays held",
		},
		{
			Package: "dispatcher", Func: "Dispatcher.handleReport",
			Old: `context.WithTimeout(context.WithoutCancel(ctx), handleLimit)`, New: `context.WithTimeout(ctx, handleLimit)`,
			Breaks: "a report whose connection breaks is left half handled",
		},
		{
			Package: "dispatcher", Func: "cancelReason",
			Old: `case outcome.Grant.CancelWhy != "": return outcome.Grant.CancelWhy`, New: ``,
			Breaks: "the device of a cancelled task that runs is not told to stop",
		},
		{
			Package: "dispatcher", Func: "retryOrEnd",
			Old: `facts.Attempts+1 >= facts.MaxAttempts`, New: `facts.Attempts >= facts.MaxAttempts`,
			Breaks: "a task gets one attempt more than its batch allows",
		},
		{
			Package: "dispatcher", Func: "decideReturnedTaskState",
			Old: `if delay == 0 {`, New: `if delay != 0 {`,
			Breaks: "a returned task is granted again without a pause, or without the pause that its device asked for",
		},
		{
			Package: "dispatcher", Func: "Leaser.isOwnHolder",
			Old: `store.HolderDevice(l.Name, "")`, New: `strings.TrimSuffix(store.HolderDevice(l.Name, ""), "/")`,
			Breaks: "a caller ends the lease of a caller whose name begins with its own", Tests: []string{"dispatcher", "operators/api"},
		},
		{
			Package: "dispatcher", Func: "Leases.acquire",
			Old: `(err != nil || ctx.Err() != nil)`, New: `err != nil`,
			Breaks: "the slot of an unnamed holder whose caller left stays held until the lease ends", Tests: []string{"dispatcher", "operators/api"},
		},
		{
			Package: "dispatcher/decision", Func: "busyObstacle",
			Old: `!situation.Mentioned && situation.HeldGrant.CancelWhy == ""`, New: `!situation.Mentioned`,
			Breaks: "a grant that its device was asked to give up is delivered again", Tests: in("decision"),
		},
		{
			Package: "dispatcher/decision", Func: "taskRules",
			Old: `task.NotBefore.After(s.Now)`, New: `false`,
			Breaks: "the decision ignores the not_before of a batch", Tests: in("decision"),
		},
		{
			Package: "dispatcher/waiters", Func: "Offers.wakeParked",
			Old: `!slices.Contains(elsewhere, calls[i])`, New: `!slices.Contains(elsewhere, calls[i]) || offer.ID > 0`,
			Breaks: "an offer to a report that is parked at another replica counts as sent, and is not offered again if the message is lost", Tests: in("waiters"),
		},
		{
			Package: "dispatcher/waiters", Func: "ParkedReports.ReplaceOlderReport",
			Old: `older.endWait(Superseded) delete(s.all, device)`, New: `delete(s.all, device)`,
			Breaks: "a newer report does not end the older parked report of its device", Tests: in("waiters"),
		},
		{
			Package: "dispatcher/policies", Func: "decisiveRefusal",
			Old: `neverDrop || r.Pending`, New: `r.Pending`,
			Breaks: "a task that started before is dropped by a policy that counted its own start", Tests: in("policies"),
		},
		{
			Package: "dispatcher/policies", Func: "allFailOpen",
			Old: `!slices.ContainsFunc(rules, func(r *limits.Rule) bool { return !r.FailsOpen() })`, New: `slices.ContainsFunc(rules, (*limits.Rule).FailsOpen)`,
			Breaks: "one policy with on_error open lets pass a start that another policy cannot check", Tests: in("policies"),
		},
		{
			Package: "dispatcher/policies", Func: "Sets.ForgetChanged",
			Old: `|| !set.CreatedAt.Equal(now.CreatedAt)`, New: ``,
			Breaks: "a replica goes on with the policies of a limit set that was deleted and made again", Tests: in("policies"),
		},
		{
			Package: "dispatcher/marks", Func: "trustState.dropOldReadings",
			Old: `> maxWrongTrust`, New: `> time.Minute`,
			Breaks: "a missing mark is trusted for longer than 5 s after the commit of its task", Tests: in("marks"),
		},
		{
			Package: "dispatcher/marks", Func: "trustState.requiredPosition",
			Old: `max(b.readings[0].newest, b.own)`, New: `b.readings[0].newest`,
			Breaks: "a replica tells a device that it has nothing to do after it queued a task for the device", Tests: in("marks"),
		},
		{
			Package: "dispatcher/marks", Func: "mark.lua",
			Old: `position < from`, New: `position < 0`,
			Breaks: "marks that Redis rolled back count as complete", Tests: in("marks"),
		},
		{
			Package: "dispatcher/marks", Func: "unmark.lua",
			Old: `string.match(mark, '^[^|]*') == ARGV[2]`, New: `mark`,
			Breaks: "a report without work takes away a mark that was set after its look at the ledger", Tests: in("marks"),
		},
		{
			Package: "dispatcher/marks", Func: "record_wait.lua",
			Old: `string.match(mark, '^[^|]*') == ARGV[2]`, New: `mark`,
			Breaks: "a wait is recorded in a mark that was set after the device was read", Tests: in("marks"),
		},
		{
			Package: "dispatcher/marks", Func: "trustState.isWaitNewerThanPoolNews",
			Old: `max(b.latestOfAll, b.latestOfPool[wait.Pool])`, New: `b.latestOfAll`,
			Breaks: "a paused batch keeps its devices waiting", Tests: in("marks"),
		},
		{
			Package: "dispatcher/seen", Func: "Devices.flush",
			Old: `pending.putBackUnflushed(selectReportsOfDevices(times, left))`, New: `pending.putBackUnflushed(selectReportsOfDevices(times, left[:n]))`,
			Breaks: "a flush that fails drops the last-seen times behind the part that failed", Tests: in("seen"),
		},
		{
			Package: "dispatcher", Func: "Dispatcher.admitCaller",
			Old: ` && caller.Via != devices.ViaSession`, New: ``,
			Breaks: "the results of a device that was blocked are recorded over MQTT", Tests: []string{"dispatcher"},
		},
		{
			Package: "store", Func: "grantEnding.endsLastTaskOfDevice",
			Old: ` && e.settlement.State != Pending`, New: ``,
			Breaks: "a device whose task is tried again is told that it has no work", Tests: []string{"dispatcher"},
		},
		{
			Package: "internal/pace", Func: "Limiter.MayAnswer",
			Old: `now.Sub(b.answered) < answerInterval`, New: `now.Sub(b.answered) < 0`,
			Breaks: "each refused report of a device without pause is answered", Tests: []string{"internal/pace", "devices/mqtt"},
		},
		{
			Package: "dispatcher/credentials", Func: "registrationLimiter.reserveRegistration",
			Old:    `devices.ID(registrant)`,
			New:    `devices.ID("")`,
			Breaks: "a stolen fleet token uses up the rate of the token that replaces it",
		},
		{
			Package: "dispatcher/credentials", Func: "Registry.enrollDevice",
			Old:    `err != nil || admitted.Device.Blocked`,
			New:    `err != nil`,
			Breaks: "a device gets its own token before an operator has approved it", Tests: []string{"dispatcher"},
		},
		{
			Package: "dispatcher/credentials", Func: "tokenCache.applyTokenChanges",
			Old: `delete(k.devices, k.hashOfDevice(c.Device))`, New: ``,
			Breaks: "a replica accepts the token of a device after another replica revoked the token", Tests: in("credentials"),
		},
		{
			Package: "dispatcher/credentials", Func: "tokenCache.isValidUntil",
			Old: `since < trustedFor && `, New: ``,
			Breaks: "a remembered token is accepted while the changes of tokens cannot be read", Tests: in("credentials"),
		},
		{
			Package: "dispatcher/upkeep", Func: "clockGuard.lapseCutoffsAfterReading",
			Old: `].low.Add(own)`, New: `].high.Add(own)`,
			Breaks: "the reaper ends a lease early by the time that a slow reading of the clock took", Tests: in("upkeep"),
		},
		{
			Package: "dispatcher/upkeep", Func: "Keeper.freeSlotsWithoutGrant",
			Old: `l.Age.Abs() > orphanAge`, New: `l.Age.Abs() > 0`,
			Breaks: "reconciliation frees the slot of a claim that is under way", Tests: in("upkeep"),
		},
	}
}
