package main

// appMistakes returns the planted mistakes in the process around the dispatcher, in doctor, and in the small
// packages below internal.
func appMistakes() []Mistake {
	return []Mistake{
		{
			Package: "internal/app", Func: "transports.drain",
			Old:    `failed = errors.Join(failed, <-end)`,
			New:    `select { case err := <-end: failed = errors.Join(failed, err); default: }`,
			Breaks: "a shutdown does not wait for the requests in flight",
		},
		{
			Package: "internal/app", Func: "App.Stop",
			Old:    `a.dispatcher.Waiters.ParkedReports.Stop()`,
			New:    ``,
			Breaks: "parked reports are cut off at a shutdown and get no answer",
		},
		{
			Package: "internal/app", Func: "pass.beginRun",
			Old:    `o.currentRun != 0 && now.Sub(o.started) < 2*o.limit`,
			New:    `o.currentRun != 0`,
			Breaks: "a background pass that hangs once never runs again",
		},
		{
			Package: "internal/app", Func: "App.newPasses",
			Old:    `keep.EndCancelledTasks`,
			New:    `keep.ExpireTasks`,
			Breaks: "the pending tasks of a cancelled batch never end",
		},
		{
			Package: "internal/app", Func: "Settings",
			Old:    `{Key: "mqtt_password", Secret: true,`,
			New:    `{Key: "mqtt_password",`,
			Breaks: "the password for the broker stands in the log and on the system page",
		},
		{
			Package: "internal/doctor", Func: "postgresState.checkObjects",
			Old:    `wrong = append(wrong, o.Name+" of "+o.Table+" is missing")`,
			New:    `continue`,
			Breaks: "doctor says ok if an index or a trigger is missing",
		},
		{
			Package: "internal/doctor", Func: "newOffsetFinding",
			Old:    `offset.ahead.Abs()-offset.maxError`,
			New:    `offset.ahead-offset.maxError`,
			Breaks: "doctor says ok of a clock that is behind",
		},
		{
			Package: "internal/redisconn", Func: "breaker.endCall",
			Old:    `if isProbe {`,
			New:    `if isProbe && callErr == nil {`,
			Breaks: "Redis is never asked again after one attempt to reach it again has failed",
		},
		{
			Package: "internal/child", Func: "guard.wait",
			Old:    `g.signal(syscall.SIGKILL)`,
			New:    ``,
			Breaks: "a command whose guard was killed outlives its lease",
		},
		{
			Package: "internal/windows", Func: "firstTimeAt",
			Old:    `return since`,
			New:    `return at`,
			Breaks: "a window whose hour is skipped opens later than the moment at which the clocks change",
		},
		{
			Package: "internal/windows", Func: "firstCommonOpening",
			Old:    `int((minOpen-rest)/time.Minute) + 1`,
			New:    `int((minOpen - rest) / time.Minute)`,
			Breaks: "a batch is queued although its windows are too short for any of its tasks to start",
		},
		{
			Package: "internal/fair", Func: "NewShares",
			Old:    `max(1, maxTotal/10)`,
			New:    `maxTotal / 10`,
			Breaks: "operators take all places of a small bound, and none is left for an admin",
			Tests:  []string{"internal/fair", "operators/api"},
		},
		{
			Package: "internal/throttle", Func: "Samples.Allow",
			Old:    `last.leftOut++`,
			New:    `last.leftOut++; last.at = now`,
			Breaks: "a warning that repeats all the time is logged once and never again",
		},
		{
			Package: "internal/coalesce", Func: "Calls.callAndRetry",
			Old:    `&& c.MayRetryAlone(err)`,
			New:    ``,
			Breaks: "requests are sent again one by one after a COMMIT whose outcome is unknown",
		},
		{
			Package: "internal/deadline", Func: "Share",
			Old:    `time.Duration(fraction*float64(left))`,
			New:    `left`,
			Breaks: "a Redis that does not answer takes all the time of a page, which then shows nothing",
		},
		{
			Package: "internal/rescue", Func: "After",
			Old:    `_ = Call(work)`,
			New:    `_ = work()`,
			Breaks: "a panic in a callback of a context ends the process",
		},
	}
}
