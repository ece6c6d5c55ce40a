package decision

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Judged is a waiting task with its first cause, which is the reason that its device is given.
type Judged struct {
	Cause

	Task store.Task
}

// Part groups waiting tasks with the same code.
type Part struct {
	Code     Code
	Label    string    // a few words
	Count    int64     // number of all tasks; an estimate if only a sample was evaluated
	Judged   int       // number of evaluated tasks
	Detail   string    // the detail of the tasks if it is the same for all, otherwise an example
	Remedy   string    // the remedy of the tasks if it is the same for all, otherwise the remedy of the code
	Actions  []Action  // actions that help every evaluated task
	Until    time.Time // earliest known time; zero if unknown
	Examples []Judged  // the first tasks, limited by the constant examples

	mixed bool // the details differ
}

// examples is the maximum number of examples of a part.
const examples = 3

// Parts groups total tasks by the codes of the evaluated sample. The counts of the parts add up
// to total. The largest part comes first.
func Parts(judged []Judged, total int64) []Part {
	byCode := make(map[Code]*Part)
	policies := make(map[Code]map[string]int)
	var parts []*Part
	for _, j := range judged {
		p := byCode[j.Code]
		if p == nil {
			p = &Part{Code: j.Code, Detail: j.Detail, Remedy: j.Remedy, Actions: j.Actions}
			byCode[j.Code], policies[j.Code] = p, make(map[string]int)
			parts = append(parts, p)
		}
		p.add(j)
		policies[j.Code][j.Policy]++
	}
	slices.SortStableFunc(parts, func(a, b *Part) int { return cmp.Or(cmp.Compare(b.Judged, a.Judged), cmp.Compare(a.Code, b.Code)) })
	all := make([]Part, len(parts))
	for i, p := range parts {
		p.Label = label(p.Code, policies[p.Code])
		all[i] = *p
	}
	bringUp(all, len(judged), total)
	for i := range all {
		if all[i].Count > int64(all[i].Judged) { // the part also has tasks of other devices
			all[i].Actions = slices.DeleteFunc(slices.Clone(all[i].Actions), Action.ofOne)
		}
	}
	return all
}

func (p *Part) add(j Judged) {
	p.Judged++
	if j.Detail != p.Detail && !p.mixed {
		p.mixed, p.Detail = true, "for example: "+p.Detail
	}
	if j.Remedy != p.Remedy {
		p.Remedy, p.Actions = of(p.Code).remedy, shared(p.Actions, j.Actions)
	}
	if !j.Until.IsZero() && (p.Until.IsZero() || j.Until.Before(p.Until)) {
		p.Until = j.Until
	}
	if len(p.Examples) < examples {
		p.Examples = append(p.Examples, j)
	}
}

// bringUp scales the counts of the evaluated tasks up to total. It rounds down, and
// gives the remaining tasks to the parts with the largest remainders.
func bringUp(parts []Part, judged int, total int64) {
	type rest struct {
		part int
		of   int64
	}
	rests, left := make([]rest, len(parts)), total
	for i := range parts {
		share := int64(parts[i].Judged) * total
		parts[i].Count, rests[i] = share/int64(judged), rest{i, share % int64(judged)}
		left -= parts[i].Count
	}
	slices.SortStableFunc(rests, func(a, b rest) int { return cmp.Compare(b.of, a.of) })
	for i := range left {
		parts[rests[i].part].Count++
	}
}

// words are the texts for a group of tasks with the same code.
type words struct {
	code          Code
	label, remedy string
}

// allWords returns a row for each code that a waiting task can have.
func allWords() []words {
	return []words{
		{CodeRevoked, "without a valid token", "give each device a new token: dispatcher devices token DEVICE"},
		{CodeBlocked, "blocked", "unblock the devices: dispatcher devices unblock DEVICE"},
		{CodeBusy, "device busy", "wait for the results of those tasks, or the end of their leases"},
		{CodePoolPaused, "pool paused", "resume the pool: dispatcher pools resume POOL"},
		{CodeBatchPaused, "batch paused", "resume the batches: dispatcher batches resume BATCH"},
		{CodeNotBefore, "not begun", NothingToDo},
		{CodeBackoff, "to be tried again later", NothingToDo},
		{CodeBatchWindow, "window of the batch closed", "wait for the windows; others may be set: dispatcher batches set BATCH --window W"},
		{CodePoolWindow, "window of the pool closed", "wait for the windows; others may be set: dispatcher pools set POOL --window W"},
		{CodeStandstill, "standstill after a restore", NothingToDo},
		{CodeUnavailable, "cannot be decided now", "see what each task says; Redis may be away"},
		{CodeLimited, "limited", "wait until then; or change the policies of pool, batch or profile"},
		{CodeCallersFull, "for a slot of callers", "wait until a caller gives its slot back; or let callers hold more: dispatcher pools set POOL --callers N"},
		{CodeFull, "for a free slot", "wait for a free slot; or raise the capacity: dispatcher pools set POOL --capacity N"},
		{CodeOtherFirst, "another task of the device first", "wait for those tasks; a higher priority goes first within a batch"},
		{CodeDeviceDeleted, "device deleted", "register the devices again, or drop the tasks: dispatcher tasks cancel TASK"},
		{CodeDeviceUnknown, "device not registered", "look whether their names are right; if they are, register the devices: dispatcher devices import -f FILE; or drop the tasks: dispatcher tasks cancel TASK"},
		{CodeDeviceUnseen, "never reported", "look whether the devices run, and have their tokens and the address of this dispatcher"},
		{CodeDeviceSilent, "device silent", "look whether the devices run and reach the dispatcher: only its own report can be granted anything"},
		{CodeNextReport, "next in line", NothingToDo},
		{CodeCancelling, "about to be cancelled", NothingToDo},
		{CodeExpiring, "about to expire", "set a later end or a longer wait: dispatcher batches set BATCH --not-after T, --max-wait D; then: dispatcher tasks retry TASK"},
	}
}

// of returns the words of a code. A code without a row is its own label.
func of(code Code) words {
	all := allWords()
	if i := slices.IndexFunc(all, func(w words) bool { return w.code == code }); i >= 0 {
		return all[i]
	}
	return words{code, string(code), NothingToDo}
}

// MayWait reports whether code can be the code of the first cause of a waiting task.
func MayWait(code Code) bool {
	return slices.ContainsFunc(allWords(), func(w words) bool { return w.code == code })
}

// label returns the label of a part, with the policy that refuses most of its tasks.
func label(code Code, policies map[string]int) string {
	most := ""
	for policy, n := range policies {
		if policy != "" && (most == "" || n > policies[most] || n == policies[most] && policy < most) {
			most = policy
		}
	}
	text := of(code).label
	switch {
	case most == "":
		return text
	case len(policies) > 1:
		text += " (" + most + ", and others)"
	default:
		text += " (" + most + ")"
	}
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(text)
}
