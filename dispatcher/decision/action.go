package decision

import (
	"fmt"
	"slices"
)

// Act names what somebody may do against a cause. Acts are stable: programs compare them.
type Act string

// The acts that remedies name. To free a slot by force is none: it may exceed the cap, and is
// never offered as the way on.
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

// Subject is the kind of what an act is done to.
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
	ID      string // of the subject
	Command string // that does it; words in capitals are to be filled in
}

// Actions has a row for each act and the kind of its subject, whose id stands for %s.
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

// to is the act on a subject; its row is there, or it names no command.
func (a Act) to(subject Subject, id any) Action {
	action := Action{Act: a, Subject: subject, ID: fmt.Sprint(id)}
	all := Actions()
	if i := slices.IndexFunc(all, func(row Action) bool { return row.Act == a && row.Subject == subject }); i >= 0 {
		action.Command = fmt.Sprintf(all[i].Command, action.ID)
	}
	return action
}

// by makes the remedy the words, with the command of each action in the place of its %s.
func (c Cause) by(words string, actions ...Action) Cause {
	commands := make([]any, len(actions))
	for i, a := range actions {
		commands[i] = a.Command
	}
	c.Remedy, c.Actions = fmt.Sprintf(words, commands...), actions
	return c
}

// ofOne says that the act helps the tasks of one device at most.
func (a Action) ofOne() bool { return a.Subject == OfDevice || a.Subject == OfTask }

// shared are those of the actions that others have, too.
func shared(actions, others []Action) []Action {
	return slices.DeleteFunc(slices.Clone(actions), func(a Action) bool { return !slices.Contains(others, a) })
}
