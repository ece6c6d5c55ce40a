package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/store"
)

// refusingTakes is a limiter that refuses every take. The last policy of the set is the policy that refuses.
type refusingTakes struct{ Takes }

func (refusingTakes) Take(_ context.Context, _ string, takings []limits.Taking) ([]limits.TakeResult, error) {
	taken := make([]limits.TakeResult, len(takings))
	for i := range taken {
		taken[i].Items = make([]limits.WindowUse, len(takings[i].Items))
		last := &taken[i].Items[len(taken[i].Items)-1]
		last.Refuses, last.Wait = true, time.Second
	}
	return taken, nil
}

// refusedSeries returns the metric of refused takes: the values of its series by "set policy kind".
func refusedSeries(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	must.Succeed(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "dispatcher_limit_takes_total" && labels["outcome"] == "refused" {
				found[strings.Join([]string{labels["set"], labels["policy"], labels["kind"]}, " ")] = m.GetCounter().GetValue()
			}
		}
	}
	return found
}

// putNamedPolicies stores a limit set in the ledger. For each name it has a policy with a fixed window.
func (l *setLedger) putNamedPolicies(set string, version int64, policies ...string) {
	var list []string
	for _, name := range policies {
		list = append(list, fmt.Sprintf(`{"name":%q,"per":"facts.a","algorithm":"fixed","max":5,"per_ms":1000}`, name))
	}
	l.sets[set] = store.LimitSet{Name: set, Limits: json.RawMessage("[" + strings.Join(list, ",") + "]"), Version: version, CreatedAt: time.UnixMilli(1)}
}

type refusingReplica struct {
	*testing.T
	*Sets
	ledger   *setLedger
	registry *prometheus.Registry
}

func newRefusingReplica(t *testing.T) *refusingReplica {
	t.Helper()
	s := &refusingReplica{T: t, ledger: &setLedger{sets: map[string]store.LimitSet{}}, registry: prometheus.NewRegistry()}
	s.Sets = newSets(Config{Ledger: s.ledger, Limits: &Limits{Takes: refusingTakes{}}, Meters: meters.New(s.registry)})
	return s
}

func (s *refusingReplica) expectRefused(set string) {
	s.Helper()
	if v, err := s.Take(s.Context(), set, []Take{{Cost: 1}}); err != nil || v[0].Allowed {
		s.Fatalf("take from %s: %+v, %v", set, v, err)
	}
}

func (s *refusingReplica) followSets() {
	s.Helper()
	must.Succeed(s, s.ForgetChanged(s.Context()))
}

func (s *refusingReplica) expectSeries(want map[string]float64) {
	s.Helper()
	if got := refusedSeries(s.T, s.registry); !maps.Equal(got, want) {
		s.Errorf("series of refused takes: %v, want %v", got, want)
	}
}

// If a policy is removed from its limit set, its metric series must end. If a limit set is deleted, all its series must end. All other
// series must continue.
func TestLabelsOfTakesGoWithTheirPolicies(t *testing.T) {
	t.Parallel()
	s := newRefusingReplica(t)
	s.ledger.putNamedPolicies("sms", 1, "a", "b")
	s.ledger.putNamedPolicies("mail", 1, "a")
	s.expectRefused("sms")
	s.expectRefused("mail")
	s.expectSeries(map[string]float64{"sms a window": 0, "sms b window": 1, "mail a window": 1})
	s.ledger.putNamedPolicies("sms", 2, "c", "b")
	s.followSets()
	s.expectRefused("sms")
	s.expectSeries(map[string]float64{"sms b window": 2, "sms c window": 0, "mail a window": 1})
	s.ForgetDeleted("mail")
	s.expectSeries(map[string]float64{"sms b window": 2, "sms c window": 0})
	delete(s.ledger.sets, "sms") // another replica deletes the set
	s.followSets()
	s.expectSeries(map[string]float64{})
}

// Another replica deletes a limit set. This replica had no takes from the set for five minutes, so it no longer reads the version of the
// set. The metric series of the set must end at this replica, too.
func TestLabelsOfIdleSetsGoWithThem(t *testing.T) {
	t.Parallel()
	s := newRefusingReplica(t)
	s.ledger.putNamedPolicies("sms", 1, "a")
	s.expectRefused("sms")
	for range 2 * idleSets {
		s.followSets()
	}
	if len(s.byName) != 0 {
		t.Fatal("the set is followed still")
	}
	s.expectSeries(map[string]float64{"sms a window": 1})
	s.expectRefused("sms")
	s.expectSeries(map[string]float64{"sms a window": 2})
	for range 2 * idleSets {
		s.followSets()
	}
	delete(s.ledger.sets, "sms")
	for range idleSets {
		s.followSets()
	}
	s.expectSeries(map[string]float64{})
}

// deletingLedger is a ledger that deletes a limit set right after it was read.
type deletingLedger struct {
	*setLedger
	onDelete func(name string)
}

func (l *deletingLedger) LimitSet(ctx context.Context, name string) (store.LimitSet, error) {
	set, err := l.setLedger.LimitSet(ctx, name)
	if err == nil {
		delete(l.sets, name)
		l.onDelete(name)
	}
	return set, err
}

func TestASetDeletedWhileItIsReadLeavesNoLabels(t *testing.T) {
	t.Parallel()
	s := newRefusingReplica(t)
	s.ledger.putNamedPolicies("sms", 1, "a")
	s.config.Ledger = &deletingLedger{s.ledger, s.ForgetDeleted}
	if v, err := s.Take(t.Context(), "sms", []Take{{Cost: 1}}); err == nil {
		t.Errorf("a take from a set that is gone: %+v", v)
	}
	s.expectSeries(map[string]float64{})
}

// A limit set has more than 20 policies. At most 20 of them may have metric series of their own. All other policies must share the name "other".
func TestLabelsOfASetAreBounded(t *testing.T) {
	t.Parallel()
	r := prometheus.NewRegistry()
	counts := newTakeMetrics(meters.New(r))
	var rules []*limits.Rule
	for i := range 30 {
		algorithm := []policy.Algorithm{policy.Sliding, policy.Fixed, policy.Calendar, policy.Duplicate}[i%4]
		rules = append(rules, &limits.Rule{Policy: policy.Policy{Name: fmt.Sprintf("n-%d", i), Algorithm: algorithm}})
	}
	counts.newTakeCounters("sms", rules)
	var others, names []string
	for series := range refusedSeries(t, r) {
		if name := strings.Split(series, " ")[1]; name == "other" {
			others = append(others, series)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(others)
	if len(names) != 20 || !slices.Equal(others, []string{"sms other duplicate", "sms other quota", "sms other window"}) {
		t.Errorf("names %v and %v", names, others)
	}
}
