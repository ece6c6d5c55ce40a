package store_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

func TestLimitSetsAreKeptAndTold(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		one, two := json.RawMessage(`[{"name":"one"}]`), json.RawMessage(`[{"name":"two"}]`)
		put := func(name string, limits json.RawMessage, dry bool) (store.LimitSet, bool) {
			t.Helper()
			set, created, err := l.PutLimitSet(l.Context(), "op", name, limits, dry)
			l.must(err)
			return set, created
		}
		if set, created := put("sms", one, true); !created || set.Version != 1 {
			l.Errorf("tried: %+v, created %t", set, created)
		}
		if _, err := l.LimitSet(l.Context(), "sms"); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("tried, and there: %v", err)
		}
		first, _ := put("sms", one, false)
		if set, created := put("sms", one, false); created || set.Version != 1 {
			l.Errorf("the same again: %+v, created %t", set, created)
		}
		if set, created := put("sms", two, false); created || set.Version != 2 || string(set.Limits) != string(two) {
			l.Errorf("changed: %+v, created %t", set, created)
		}
		put("api", nil, false)
		sets, err := l.LimitSets(l.Context(), "", 10)
		l.must(err)
		if len(sets) != 2 || sets[0].Name != "api" || sets[0].Limits != nil || sets[1].Name != "sms" {
			l.Errorf("%+v", sets)
		}
		versions, err := l.LimitSetVersions(l.Context(), []string{"sms", "gone"})
		l.must(err)
		if len(versions) != 1 || versions[0].Version != 2 || !versions[0].CreatedAt.Equal(first.CreatedAt) {
			l.Errorf("%+v", versions)
		}
		l.must(l.DeleteLimitSet(l.Context(), "op", "sms"))
		if err := l.DeleteLimitSet(l.Context(), "op", "sms"); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("deleted twice: %v", err)
		}
		events, err := l.Events(l.Context(), store.EventFilter{})
		l.must(err)
		var told []string
		for _, e := range events {
			if strings.HasPrefix(e.Kind, "limit_set.") {
				told = append(told, e.Actor+" "+e.Kind+" "+e.Detail)
			}
		}
		want := []string{
			`op limit_set.created limit_set=sms limits=[{"name":"one"}]`, `op limit_set.changed limit_set=sms limits=[{"name":"one"}] -> [{"name":"two"}]`,
			"op limit_set.created limit_set=api limits=none", "op limit_set.deleted limit_set=sms",
		}
		if !slices.Equal(told, want) {
			l.Errorf("%q", told)
		}
	})
}

// TestVersionsOfLimitSetsAreFoundByName checks the query that each replica runs every second to find changes of the limit sets that it
// uses. The query must not read other limit sets.
func TestVersionsOfLimitSetsAreFoundByName(t *testing.T) {
	t.Parallel()
	l := openSQLite(t)
	plan := l.sqlitePlan(`SELECT s.name FROM {names} JOIN limit_sets s ON s.name = names.name`, `[{"n":0,"name":"sms"}]`)
	if text := strings.Join(plan, "\n"); !strings.Contains(text, "SEARCH s USING") || strings.Contains(text, "SCAN s") {
		t.Error(text)
	}
}
