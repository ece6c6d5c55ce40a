package web

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"
)

// System is the content of the system page about this replica.
type System struct {
	Mode     string // dev or production
	Version  string
	ID       string                                      // of this process, among the replicas
	Checks   func(ctx context.Context) map[string]string // of the dependencies: ok, degraded or failed
	Passes   func() []Pass                               // the background passes of this replica
	Settings []Setting                                   // without secrets
}

// Pass is a background pass of this replica.
type Pass struct {
	Name     string
	Every    time.Duration
	LastGood *time.Time // when it last ended without an error; nil: not yet
	Failed   bool       // the last run; the log says why
}

// Setting is one line of the configuration, for people.
type Setting struct{ Key, Value, Help string }

// dependency is one check of readiness.
type dependency struct{ Name, State string }

// dependencies are asked now.
func (s System) dependencies(ctx context.Context) []dependency {
	if s.Checks == nil {
		return nil
	}
	return s.listed(s.Checks(ctx))
}

// listed are checks by name, for people: dev has no Postgres.
func (s System) listed(checks map[string]string) []dependency {
	list := make([]dependency, 0, len(checks))
	for _, check := range slices.Sorted(maps.Keys(checks)) {
		name := check
		if s.Mode == "dev" && check == "postgres" {
			name = "SQLite"
		}
		list = append(list, dependency{name, checks[check]})
	}
	return list
}

// broken are the dependencies that do not work.
func broken(list []dependency) []dependency {
	return slices.DeleteFunc(list, func(d dependency) bool { return d.State == "ok" })
}

// systemPages show the replicas, and this one in detail.
type systemPages struct {
	system  System
	ledger  pageData
	streams func() int // that are open
}

func (s *systemPages) route(to *site) { to.liveChecked("/system", s.system, s.page) }

func (s *systemPages) page(r *http.Request, checks []dependency) (page, error) {
	data := map[string]any{"System": s.system, "Checks": checks, "Streams": s.streams(), "Passes": []Pass(nil)}
	if s.system.Passes != nil {
		data["Passes"] = s.system.Passes()
	}
	all, err := s.replicas(r.Context())
	if err != nil {
		return page{}, err
	}
	data["Replicas"], data["Versions"] = all, versions(all)
	return page{title: "System", section: "system", template: "system", watch: watch{always: true}, data: data}, nil
}
