package web

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/operators/api"
)

// System is the content of the system page about this replica.
type System struct {
	Mode     string // dev or production
	Version  string
	ID       string                                     // of this process, among the replicas
	Checks   func(ctx context.Context) []api.Dependency // how this replica reaches its servers; as far as is known when ctx ends
	Passes   func() []Pass                              // the background passes of this replica
	Settings []Setting                                  // without secrets
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

// checksShare is the part of a page's time for which it waits for the checks.
const checksShare = 0.3

// dependencies checks the dependencies now. If a dependency does not answer soon, its last known
// state is returned.
func (s System) dependencies(ctx context.Context) []dependency {
	if s.Checks == nil {
		return nil
	}
	ctx, cancel := deadline.Share(ctx, checksShare)
	defer cancel()
	return s.named(s.Checks(ctx))
}

// listed returns checks by name, as another replica published them.
func (s System) listed(checks map[string]string) []dependency {
	list := make([]api.Dependency, 0, len(checks))
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		list = append(list, api.Dependency{Name: name, State: checks[name]})
	}
	return s.named(list)
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
