package decision

import (
	"fmt"
	"slices"
)

// Act names an action of an operator against the cause of a wait. Acts never change, because programs compare them.
type Act string

// These acts appear in remedies. The forced release of a slot is no act, because it may exceed the capacity of the pool.
const (
	ActUnblock       Act = "unblock"
	ActNewToken      Act = "new_token"
	ActRegister      Act = "register"
	ActResume        Act = "resume"
	ActRaiseCapacity Act = "raise_capacity"
	ActRaiseCallers  Act = "raise_callers"
	ActEditWindows   Act = "edit_windows"
	ActEditLimits    Act = "edit_limits"
	ActEditEnd       Act = "edit_end"
	ActEditMaxWait   Act = "edit_max_wait"
	ActCancel        Act = "cancel"
	ActRetry         Act = "retry"
)

// Subject is the kind of object that an act changes.
type Subject string

// The subjects of acts.
const (
	SubjectDevice  Subject = "device"
	SubjectPool    Subject = "pool"
	SubjectBatch   Subject = "batch"
	SubjectProfile Subject = "profile"
	SubjectTask    Subject = "task"
)

// Action is an act on one subject.
type Action struct {
	Act     Act
	Subject Subject
	ID      string // id of the subject
	Command string // command that carries out the act; words in capitals are placeholders
}

// Actions returns one Action for each act and subject, with an empty ID. In Command, %s stands for the id.
func Actions() []Action {
	return []Action{
		{ActUnblock, SubjectDevice, "", "dispatcher devices unblock %s"},
		{ActNewToken, SubjectDevice, "", "dispatcher devices token %s"},
		{ActRegister, SubjectDevice, "", "dispatcher devices create %s"},
		{ActResume, SubjectPool, "", "dispatcher pools resume %s"},
		{ActResume, SubjectBatch, "", "dispatcher batches resume %s"},
		{ActRaiseCapacity, SubjectPool, "", "dispatcher pools set %s --capacity N"},
		{ActRaiseCallers, SubjectPool, "", "dispatcher pools set %s --callers N"},
		{ActEditWindows, SubjectPool, "", "dispatcher pools set %s --window W"},
		{ActEditWindows, SubjectBatch, "", "dispatcher batches set %s --window W"},
		{ActEditLimits, SubjectPool, "", "dispatcher pools set %s --limits @FILE"},
		{ActEditLimits, SubjectBatch, "", "dispatcher batches set %s --limits @FILE"},
		{ActEditLimits, SubjectProfile, "", "dispatcher profiles put %s --limits @FILE"},
		{ActEditEnd, SubjectBatch, "", "dispatcher batches set %s --not-after T"},
		{ActEditMaxWait, SubjectBatch, "", "dispatcher batches set %s --max-wait D"},
		{ActCancel, SubjectTask, "", "dispatcher tasks cancel %s"},
		{ActRetry, SubjectTask, "", "dispatcher tasks retry %s"},
	}
}

// actionOn returns the action that applies the act a to the subject with this id. If the table Actions has no row for a and subject, the
// field Command of the action is empty.
func (a Act) actionOn(subject Subject, subjectID any) Action {
	action := Action{Act: a, Subject: subject, ID: fmt.Sprint(subjectID)}
	all := Actions()
	if i := slices.IndexFunc(all, func(row Action) bool { return row.Act == a && row.Subject == subject }); i >= 0 {
		action.Command = fmt.Sprintf(all[i].Command, action.ID)
	}
	return action
}

// withRemedy returns the cause with these actions and a remedy. The remedy is format, with each %s replaced by the command of the next
// action.
func (c Cause) withRemedy(format string, actions ...Action) Cause {
	commands := make([]any, len(actions))
	for i, a := range actions {
		commands[i] = a.Command
	}
	c.Remedy, c.Actions = fmt.Sprintf(format, commands...), actions
	return c
}

// RemedyOfFailures replaces the remedy of a task that waits for a slot while many attempts in its pool fail.
const RemedyOfFailures = "find out why attempts fail; a higher capacity would let more of them fail"

// AdvisesHigherCapacity reports whether the remedy of the cause is a higher capacity of the pool.
func (c Cause) AdvisesHigherCapacity() bool {
	return slices.ContainsFunc(c.Actions, func(a Action) bool { return a.Act == ActRaiseCapacity })
}

// WithoutCapacityAdvice replaces the advice to raise the capacity of the pool by otherRemedy.
func (c Cause) WithoutCapacityAdvice(otherRemedy string) Cause {
	if c.AdvisesHigherCapacity() {
		c.Remedy, c.Actions = otherRemedy, nil
	}
	return c
}

func (a Action) helpsOneDevice() bool { return a.Subject == SubjectDevice || a.Subject == SubjectTask }

func commonActions(actions, others []Action) []Action {
	return slices.DeleteFunc(slices.Clone(actions), func(a Action) bool { return !slices.Contains(others, a) })
}
