package devices_test

import (
	"slices"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// check compares the records of the external system, of the network and of the ledger.
func (r *trial) check() {
	r.Helper()
	stays := r.judge.stays()
	for _, violation := range slices.Concat(r.judge.violations(), r.traffic.violations(stays)) {
		r.Error(violation)
	}
	worked := map[grantKey]float64{} // seconds inside
	for _, s := range stays {
		worked[s.grant] += s.left.Sub(s.entered).Seconds()
	}
	for id, kind := range r.kinds {
		task, err := r.server.admin.Tasks.Get(r.Context(), id)
		must.Succeed(r, err)
		r.checkTask(task, kind)
		r.checkAttempts(task, kind, worked)
	}
}

// checkTask checks the state of a task at the end.
func (r *trial) checkTask(task operators.TaskDetail, kind string) {
	r.Helper()
	want := map[string][]string{kindFailing: {operators.Failed, operators.TimedOut}, kindCancel: {operators.Cancelled}}[kind]
	if want == nil {
		want = []string{operators.Succeeded}
	}
	if !slices.Contains(want, task.State) {
		r.Errorf("task %d (%s) is %s, want one of %v: %s", task.ID, kind, task.State, want, task.Error)
	}
	if kind == kindFailing && task.CountedAttempts != failingAttempts {
		r.Errorf("task %d (%s) has %d attempts, want %d", task.ID, kind, task.CountedAttempts, failingAttempts)
	}
	if kind == kindLarge && !task.Dropped && len(task.Output) > len("null") {
		r.Errorf("task %d (%s): the output has %d bytes, but was not dropped", task.ID, kind, len(task.Output))
	}
}

// checkAttempts checks that each recorded attempt is one that a device reported, and that each reported result is recorded once.
func (r *trial) checkAttempts(task operators.TaskDetail, kind string, worked map[grantKey]float64) {
	r.Helper()
	succeeded, tokens := 0, map[int64]bool{}
	for _, attempt := range task.Attempts {
		grant := grantKey{task.ID, attempt.Token}
		status, outcomes := r.traffic.resultStatus(grant)
		if tokens[attempt.Token] {
			r.Errorf("task %d (%s): the token %d was counted twice", task.ID, kind, attempt.Token)
		}
		tokens[attempt.Token] = true
		if slices.Contains(outcomes, "recorded") && attempt.EndedBy != status {
			r.Errorf("task %d (%s): the device reported token %d as %s, and it ended by %s", task.ID, kind, attempt.Token, status, attempt.EndedBy)
		}
		if attempt.EndedBy == operators.Succeeded {
			succeeded++
			if status != operators.Succeeded {
				r.Errorf("task %d (%s): token %d succeeded, but was reported as %q", task.ID, kind, attempt.Token, status)
			}
		}
		if least := leastWork(kind); status == operators.Succeeded && worked[grant] <= least {
			r.Errorf("task %d (%s): token %d succeeded after %.2f s inside, want more than %.2f s", task.ID, kind, attempt.Token, worked[grant], least)
		}
	}
	if succeeded > 1 {
		r.Errorf("task %d (%s) succeeded %d times", task.ID, kind, succeeded)
	}
}

// leastWork returns the minimum time, in seconds, for which a task of a kind keeps its device in the external system. For a shell on a busy
// machine, making the connection is a part of the work.
func leastWork(kind string) float64 {
	if kind == kindLong {
		return longWork / 2
	}
	return 0
}
