package decision_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// `why` sums up many tasks in groups. A group must have only the actions that help every evaluated task. If only a sample was evaluated,
// the group must have no action on a single device or task, because the tasks that were not evaluated belong to other devices.
func TestActionsOfPartsHelpAll(t *testing.T) {
	t.Parallel()
	resume := decision.Action{Act: decision.ActResume, Subject: decision.SubjectPool, ID: "p", Command: "resume"}
	unblock := func(id string) decision.Action {
		return decision.Action{Act: decision.ActUnblock, Subject: decision.SubjectDevice, ID: id, Command: "unblock " + id}
	}
	cause := func(remedy string, actions ...decision.Action) decision.ExplainedTask {
		return decision.ExplainedTask{Cause: decision.Cause{Code: decision.CodeBlocked, Detail: remedy, Remedy: remedy, Actions: actions}, Task: store.Task{}}
	}
	for name, c := range map[string]struct {
		judged []decision.ExplainedTask
		total  int64
		want   []decision.Action
	}{
		"the same":           {[]decision.ExplainedTask{cause("a", unblock("d"), resume), cause("a", unblock("d"), resume)}, 2, []decision.Action{unblock("d"), resume}},
		"one of two":         {[]decision.ExplainedTask{cause("a", unblock("d"), resume), cause("b", unblock("e"), resume)}, 2, []decision.Action{resume}},
		"none":               {[]decision.ExplainedTask{cause("a", unblock("d")), cause("b", unblock("e"))}, 2, []decision.Action{}},
		"of a sample":        {[]decision.ExplainedTask{cause("a", unblock("d"), resume)}, 100, []decision.Action{resume}},
		"one, and all of it": {[]decision.ExplainedTask{cause("a", unblock("d"))}, 1, []decision.Action{unblock("d")}},
	} {
		if got := decision.GroupByCode(c.judged, c.total); len(got) != 1 || fmt.Sprint(got[0].Actions) != fmt.Sprint(c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A batch at its end waits for a few devices that never report, and its pool is full of other tasks. Silence does not end by itself, so the
// reason of the silent devices comes first, although fewer tasks have it.
func TestWhatStaysComesBeforeWhatPasses(t *testing.T) {
	t.Parallel()
	causes := map[decision.Code]int{decision.CodeFull: 90, decision.CodeDeviceUnseen: 4, decision.CodeOtherFirst: 50, decision.CodeBlocked: 5}
	var judged []decision.ExplainedTask
	for code, n := range causes {
		for range n {
			judged = append(judged, decision.ExplainedTask{Cause: decision.Cause{Code: code}})
		}
	}
	var order []decision.Code
	for _, group := range decision.GroupByCode(judged, int64(len(judged))) {
		order = append(order, group.Code)
	}
	if want := []decision.Code{decision.CodeBlocked, decision.CodeDeviceUnseen, decision.CodeFull, decision.CodeOtherFirst}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}
