package decision

import (
	"fmt"
	"slices"
)

// Act names an action that an operator can take against a cause. Acts are stable: programs compare them.
type Act string

// The acts that remedies name. The forced release of a slot is not an act: it may exceed the
// capacity, so no remedy offers it as an action.
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
	OfDevice  Subject = "device"
	OfPool    Subject = "pool"
	OfBatch   Subject = "batch"
	OfProfile Subject = "profile"
	OfTask    Subject = "task"
)

// Action is an act on one subject.
type Action struct {
	Act     Act
	Subject Subject
	ID      string // id of the subject
	Command string // command that carries out the act; words in capitals are placeholders
}

// Actions returns one row for each pair of an act and a subject. In Command, %s is a placeholder for the id.
func Actions() []Action {
	return []Action{
		{ActUnblock, OfDevice, "", "dispatcher devices unblock %s"},
		{ActNewToken, OfDevice, "", "dispatcher devices token %s"},
		{ActRegister, OfDevice, "", "dispatcher devices create %s"},
		{ActResume, OfPool, "", "dispatcher pools resume %s"},
		{ActResume, OfBatch, "", "dispatcher batches resume %s"},
		{ActRaiseCapacity, OfPool, "", "dispatcher pools set %s --capacity N"},
		{ActRaiseCallers, OfPool, "", "dispatcher pools set %s --callers N"},
		{ActEditWindows, OfPool, "", "dispatcher pools set %s --window W"},
		{ActEditWindows, OfBatch, "", "dispatcher batches set %s --window W"},
		{ActEditLimits, OfPool, "", "dispatcher pools set %s --limits @FILE"},
		{ActEditLimits, OfBatch, "", "dispatcher batches set %s --limits @FILE"},
		{ActEditLimits, OfProfile, "", "dispatcher profiles put %s --limits @FILE"},
		{ActEditEnd, OfBatch, "", "dispatcher batches set %s --not-after T"},
		{ActEditMaxWait, OfBatch, "", "dispatcher batches set %s --max-wait D"},
		{ActCancel, OfTask, "", "dispatcher tasks cancel %s"},
		{ActRetry, OfTask, "", "dispatcher tasks retry %s"},
	}
}

// to returns the act on the subject with this id. If Actions has no row for the act and the subject, the command
// is empty.
func (a Act) to(subject Subject, id any) Action {
	action := Action{Act: a, Subject: subject, ID: fmt.Sprint(id)}
	all := Actions()
	if i := slices.IndexFunc(all, func(row Action) bool { return row.Act == a && row.Subject == subject }); i >= 0 {
		action.Command = fmt.Sprintf(all[i].Command, action.ID)
	}
	return action
}

// by returns the cause with a remedy and its actions. The command of each action replaces a %s in words.
func (c Cause) by(words string, actions ...Action) Cause {
	commands := make([]any, len(actions))
	for i, a := range actions {
		commands[i] = a.Command
	}
	c.Remedy, c.Actions = fmt.Sprintf(words, commands...), actions
	return c
}

// ofOne reports whether the act helps the tasks of at most one device.
func (a Action) ofOne() bool { return a.Subject == OfDevice || a.Subject == OfTask }

// shared returns the actions that are also in others.
func shared(actions, others []Action) []Action {
	return slices.DeleteFunc(slices.Clone(actions), func(a Action) bool { return !slices.Contains(others, a) })
}
