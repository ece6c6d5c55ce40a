package store_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// actorsOf returns the events that match filter as texts: kind of the event, kind of the actor, actor.
func (l *ledger) actorsOf(filter store.EventFilter) (texts []string) {
	l.Helper()
	events, err := l.Events(l.Context(), filter)
	l.must(err)
	for _, e := range events {
		texts = append(texts, e.Kind+" "+string(e.ActorKind)+" "+e.Actor)
	}
	return texts
}

// TestActorsOfOneNameAreToldApart checks that events distinguish actors with the same name: a device and a part of the dispatcher, and a
// device and an operator.
func TestActorsOfOneNameAreToldApart(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		for _, device := range []string{"reaper", "carol"} {
			_, err := l.EnsureDevices(l.Context(), device)
			l.must(err)
		}
		_, err := l.CreateToken(l.Context(), "op", store.Token{Name: "carol", Role: "operator"}, []byte("hash"))
		l.must(err) // the device carol does not have the name of the token
		batch, tasks := l.queueBatch(store.Batch{Pool: "p"}, "reaper", "reaper", "carol")
		l.mustGrant(tasks[0], "reaper", "p", 0)
		reaped, err := l.Reap(l.Context(), l.lapsesAt(time.Now().Add(24*time.Hour)), 10, settleEnding)
		l.must(err)
		g := l.mustGrant(tasks[1], "reaper", "p", 0)
		outcome := l.RecordResults(l.Context(), []store.Result{{Device: "reaper", Task: g.Task, Token: g.Token, Cause: store.BySuccess}}, settleEnding)[0]
		if len(reaped) != 1 || outcome.Err != nil {
			l.Fatalf("reaped %v, %v", reaped, outcome.Err)
		}
		l.mustGrant(tasks[2], "carol", "p", 1)
		_, err = l.CancelTask(l.Context(), "carol", tasks[2])
		l.must(err)
		_, err = l.PauseBatch(l.Context(), "carol", batch.ID, "")
		l.must(err)
		l.must(l.RecordRefusal(l.Context(), store.Event{Actor: "nobody"}))
		l.must(l.RecordRefusal(l.Context(), store.Event{Actor: "carol", ActorKind: store.ActorDevice}))
		for name, test := range map[string]struct {
			filter store.EventFilter
			want   []string
		}{
			"reaper": {store.EventFilter{Actor: "reaper"}, []string{
				"task.granted device reaper", "task.lapsed program reaper", "task.granted device reaper", "task.succeeded device reaper",
			}},
			"the pass reaper": {store.EventFilter{Actor: "reaper", ActorKind: store.ActorProgram}, []string{"task.lapsed program reaper"}},
			"programs":        {store.EventFilter{ActorKind: store.ActorProgram}, []string{"task.lapsed program reaper"}},
			"the device carol": {store.EventFilter{Actor: "carol", ActorKind: store.ActorDevice}, []string{
				"task.granted device carol", "access.refused device carol",
			}},
			"the operator carol":  {store.EventFilter{Actor: "carol", ActorKind: store.ActorOperator}, []string{"task.cancel_asked operator carol", "batch.paused operator carol"}},
			"operators of device": {store.EventFilter{Device: "carol", ActorKind: store.ActorOperator}, []string{"task.cancel_asked operator carol"}},
			"registrants":         {store.EventFilter{Device: "carol", ActorKind: store.ActorRegistrant}, []string{"device.created registrant fleet:test"}},
			"unknown":             {store.EventFilter{ActorKind: store.ActorUnknown}, []string{"access.refused unknown nobody"}},
		} {
			if got := l.actorsOf(test.filter); !slices.Equal(got, test.want) {
				l.Errorf("%s: %q, want %q", name, got, test.want)
			}
		}
	})
}

// TestDevicesActAsDevices makes a device that has the name of a part of the dispatcher do everything that a device can do. None of its
// events may be shown as an event of that part.
func TestDevicesActAsDevices(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		const device = "canceller"
		l.putPool("p", 4)
		l.must(l.enroll(device, []byte("hash"), nil))
		_, tasks := l.queueBatch(store.Batch{Pool: "p"}, device, device)
		send := func(g store.Grant, cause store.EndCause, isDropped bool) {
			l.Helper()
			r := store.Result{Device: device, Task: g.Task, Token: g.Token, Cause: cause, Dropped: isDropped}
			l.must(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Err)
		}
		late := l.mustGrant(tasks[0], device, "p", 0)
		_, err := l.Reap(l.Context(), l.lapsesAt(time.Now().Add(24*time.Hour)), 10, settleEnding)
		l.must(err)
		send(late, store.BySuccess, true)
		send(l.mustGrant(tasks[1], device, "p", 0), store.BySuccess, true)
		send(store.Grant{Task: 999, Token: late.Token}, store.BySuccess, false)
		want := []string{
			"device.enrolled", "task.granted", "result.late", "result.output_dropped", "task.succeeded_late",
			"task.granted", "task.succeeded", "result.output_dropped", "result.unknown",
		}
		for i := range want {
			want[i] += " device " + device
		}
		if got := l.actorsOf(store.EventFilter{Actor: device}); !slices.Equal(got, want) {
			l.Errorf("%q, want %q", got, want)
		}
		// The pass canceller ends the waiting task of a cancelled batch.
		batch, _ := l.queueBatch(store.Batch{Pool: "p"}, "other")
		_, err = l.CancelBatch(l.Context(), "op", batch.ID)
		l.must(err)
		_, err = l.EndCancelled(l.Context(), 10)
		l.must(err)
		want = []string{"task.cancelled program canceller"}
		if got := l.actorsOf(store.EventFilter{Actor: device, ActorKind: store.ActorProgram}); !slices.Equal(got, want) {
			l.Errorf("%q, want %q", got, want)
		}
	})
}

// TestEveryEventHasTheKindOfItsActor checks that each statement of this package that writes events also writes the kind of the actor.
func TestEveryEventHasTheKindOfItsActor(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	must.Succeed(t, err)
	writes, found := regexp.MustCompile(`INSERT INTO events \(([^)]*)\)`), 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		for _, match := range writes.FindAllStringSubmatch(string(text), -1) {
			found++
			if !strings.Contains(match[1], "actor_kind") {
				t.Errorf("%s: %s", file, match[0])
			}
		}
	}
	if found < 10 {
		t.Errorf("%d statements found", found)
	}
}
