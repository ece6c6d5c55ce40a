package decision

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// ExplainedTask is a waiting task with the first cause of its explanation.
type ExplainedTask struct {
	Cause

	Task     store.Task
	LastSeen time.Time // last report of the device of the task; zero if there is none
}

// CauseGroup groups waiting tasks with the same code.
type CauseGroup struct {
	Code      Code
	Label     string // name of the group for people, a few words
	Count     int64  // number of all tasks; an estimate if only a sample was evaluated
	Evaluated int
	Detail    string          // the detail of the tasks if it is the same for all, otherwise an example
	Remedy    string          // the remedy of the tasks if it is the same for all, otherwise the remedy of the code
	Actions   []Action        // actions that help every evaluated task
	Until     time.Time       // the earliest known Until of the tasks; zero if none is known
	Examples  []ExplainedTask // the first tasks, at most maxExamples

	mixed bool // the tasks have different details
}

// maxExamples is the maximum number of examples of a group.
const maxExamples = 3

// GroupByCode groups waiting tasks by the code of their first cause. explained is a sample of totalTasks waiting tasks, and the counts of the
// groups add up to totalTasks. Groups whose cause does not pass by itself come first. Among the others, larger groups come first.
func GroupByCode(explained []ExplainedTask, totalTasks int64) []CauseGroup {
	byCode := make(map[Code]*CauseGroup)
	policies := make(map[Code]map[string]int)
	var groups []*CauseGroup
	for _, j := range explained {
		p := byCode[j.Code]
		if p == nil {
			p = &CauseGroup{Code: j.Code, Detail: j.Detail, Remedy: j.Remedy, Actions: j.Actions}
			byCode[j.Code], policies[j.Code] = p, make(map[string]int)
			groups = append(groups, p)
		}
		p.addTask(j)
		policies[j.Code][j.Policy]++
	}
	slices.SortStableFunc(groups, func(a, b *CauseGroup) int {
		return cmp.Or(comparePermanence(a.Code, b.Code), cmp.Compare(b.Evaluated, a.Evaluated), cmp.Compare(a.Code, b.Code))
	})
	all := make([]CauseGroup, len(groups))
	for i, p := range groups {
		p.Label = groupLabel(p.Code, policies[p.Code])
		all[i] = *p
	}
	scaleGroupCounts(all, len(explained), totalTasks)
	for i := range all {
		if all[i].Count > int64(all[i].Evaluated) { // Count includes tasks that were not evaluated, which may belong to other devices
			all[i].Actions = slices.DeleteFunc(slices.Clone(all[i].Actions), Action.helpsOneDevice)
		}
	}
	return all
}

func (p *CauseGroup) addTask(explained ExplainedTask) {
	p.Evaluated++
	if explained.Detail != p.Detail && !p.mixed {
		p.mixed, p.Detail = true, "for example: "+p.Detail
	}
	if explained.Remedy != p.Remedy {
		p.Remedy, p.Actions = findCodeText(p.Code).remedy, commonActions(p.Actions, explained.Actions)
	}
	if !explained.Until.IsZero() && (p.Until.IsZero() || explained.Until.Before(p.Until)) {
		p.Until = explained.Until
	}
	if len(p.Examples) < maxExamples {
		p.Examples = append(p.Examples, explained)
	}
}

// scaleGroupCounts sets the count of each group so that all counts add up to totalTasks. Each count is the group's Evaluated multiplied by
// totalTasks/evaluatedTasks, and rounded down. The tasks that are lost by rounding are added to the groups with the largest remainders.
func scaleGroupCounts(groups []CauseGroup, evaluatedTasks int, totalTasks int64) {
	type rest struct {
		group     int
		remainder int64
	}
	rests, left := make([]rest, len(groups)), totalTasks
	for i := range groups {
		share := int64(groups[i].Evaluated) * totalTasks
		groups[i].Count, rests[i] = share/int64(evaluatedTasks), rest{i, share % int64(evaluatedTasks)}
		left -= groups[i].Count
	}
	slices.SortStableFunc(rests, func(a, b rest) int { return cmp.Compare(b.remainder, a.remainder) })
	for i := range left {
		groups[rests[i].group].Count++
	}
}

// codeText holds the texts for a group of tasks with the same code.
type codeText struct {
	code          Code
	passes        permanence
	label, remedy string
}

// permanence says whether a cause ends by itself. In every explanation, causes that do not end by themselves come first.
type permanence bool

const (
	stays  permanence = false // ends only after an action, or when the device returns
	passes permanence = true  // ends by itself
)

// codeTexts returns a row for each code that a waiting task can have.
func codeTexts() []codeText {
	return []codeText{
		{CodeRevoked, stays, "without a valid token", "give each device a new token: dispatcher devices token DEVICE"},
		{CodeBlocked, stays, "blocked", "unblock the devices: dispatcher devices unblock DEVICE"},
		{CodeBusy, passes, "device busy", "wait for the results of the tasks that the devices hold, or the end of their leases"},
		{CodeWrongWire, stays, "payload is no DDI deployment", "queue a batch whose payload is a deployment, or set metadata_only in the profile of the devices; to end the tasks: dispatcher tasks cancel TASK"},
		{CodePoolPaused, stays, "pool paused", "resume the pool: dispatcher pools resume POOL"},
		{CodeBatchPaused, stays, "batch paused", "resume the batches: dispatcher batches resume BATCH"},
		{CodeNotBefore, passes, "not_before not reached", NothingToDo},
		{CodeBackoff, passes, "waiting for a retry", NothingToDo},
		{CodeBatchWindow, passes, "window of the batch closed", "wait for the windows to open; to set other windows: dispatcher batches set BATCH --window W"},
		{CodePoolWindow, passes, "window of the pool closed", "wait for the windows to open; to set other windows: dispatcher pools set POOL --window W"},
		{CodeStandstill, passes, "standstill after a restore", NothingToDo},
		{CodeUnavailable, stays, "cannot be evaluated now", "read the detail of each task; check whether Redis answers: dispatcher doctor"},
		{CodeLimited, passes, "limited", "wait until then; or change the policies of the pool, batch or profile"},
		{CodeCallersFull, passes, "no free slot for callers", "wait until a caller gives its slot back; or raise the maximum for callers: dispatcher pools set POOL --callers N"},
		{CodeFull, passes, "no free slot", "wait for a free slot; or raise the capacity: dispatcher pools set POOL --capacity N"},
		{CodeOtherFirst, passes, "another task of the device first", "wait for the tasks that go first; within a batch, a higher priority goes first"},
		{CodeDeviceDeleted, stays, "device deleted", "register the devices again; or cancel the tasks: dispatcher tasks cancel TASK"},
		{CodeDeviceUnknown, stays, "device not registered", "check their names; if the names are right, register the devices: dispatcher devices import -f FILE; or cancel the tasks: dispatcher tasks cancel TASK"},
		{CodeDeviceUnseen, stays, "never reported", "check whether the devices run, and have their tokens and the address of this dispatcher"},
		{CodeDeviceSilent, stays, "device silent", "check whether the devices run and reach the dispatcher: a task is granted only to a report of its device"},
		{CodeDeviceNoisy, stays, "device reports too often", "repair the devices: dispatcher devices list --noisy true"},
		{CodeNextReport, passes, "granted with the next report", NothingToDo},
		{CodeCancelling, passes, "about to be cancelled", NothingToDo},
		{CodeExpiring, passes, "about to expire", "set a later not_after or a longer max_wait: dispatcher batches set BATCH --not-after T, --max-wait D; then: dispatcher tasks retry TASK"},
	}
}

func findCodeText(code Code) codeText {
	all := codeTexts()
	if i := slices.IndexFunc(all, func(w codeText) bool { return w.code == code }); i >= 0 {
		return all[i]
	}
	return codeText{code, passes, string(code), NothingToDo}
}

// PassesByItself reports whether a cause with this code ends by itself, without an action of an operator or the return of a device.
func PassesByItself(code Code) bool { return bool(findCodeText(code).passes) }

// comparePermanence sorts codes whose causes do not pass by themselves before all other codes.
func comparePermanence(a, b Code) int {
	return compareTrueFirst(!PassesByItself(a), !PassesByItself(b))
}

// IsWaitingCode reports whether code can be the code of the first cause of a waiting task.
func IsWaitingCode(code Code) bool {
	return slices.ContainsFunc(codeTexts(), func(w codeText) bool { return w.code == code })
}

// groupLabel returns the label of a group of tasks with this code. refusalsByPolicy has the number of tasks that each policy refuses, by the
// name of the policy. The label names the policy that refuses most tasks.
func groupLabel(code Code, refusalsByPolicy map[string]int) string {
	topPolicy := ""
	for policy, n := range refusalsByPolicy {
		if policy != "" && (topPolicy == "" || n > refusalsByPolicy[topPolicy] || n == refusalsByPolicy[topPolicy] && policy < topPolicy) {
			topPolicy = policy
		}
	}
	text := findCodeText(code).label
	switch {
	case topPolicy == "":
		return text
	case len(refusalsByPolicy) > 1:
		text += " (" + topPolicy + ", and others)"
	default:
		text += " (" + topPolicy + ")"
	}
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(text)
}
