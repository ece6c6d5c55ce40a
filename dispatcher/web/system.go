package web

import (
	"context"
	"maps"
	"net/http"
	"slices"
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

// Setting is one line of the configuration, for people.
type Setting struct{ Key, Value, Help string }

// named is the name of a check for people: dev has no Postgres.
func (s System) named(check string) string {
	if s.Mode == "dev" && check == "postgres" {
		return "SQLite"
	}
	return check
}

// dependency is one check of readiness.
type dependency struct{ Name, State string }

func (w *Web) routeSystem() { w.livePage("/system", w.checked(w.systemPage)) }

func (w *Web) systemPage(r *http.Request, checks []dependency) (page, error) {
	s := w.options.System
	data := map[string]any{"System": s, "Checks": checks, "Streams": w.streams.open.Taken(), "Passes": []Pass(nil)}
	if s.Passes != nil {
		data["Passes"] = s.Passes()
	}
	all, err := w.replicas(r.Context())
	if err != nil {
		return page{}, err
	}
	data["Replicas"], data["Versions"] = all, versions(all)
	return page{title: "System", section: "system", template: "system", watch: watch{always: true}, data: data}, nil
}

// dependencies are asked now.
func (w *Web) dependencies(ctx context.Context) []dependency {
	if w.options.System.Checks == nil {
		return nil
	}
	states := w.options.System.Checks(ctx)
	list := make([]dependency, 0, len(states))
	for _, name := range slices.Sorted(maps.Keys(states)) {
		list = append(list, dependency{w.options.System.named(name), states[name]})
	}
	return list
}
