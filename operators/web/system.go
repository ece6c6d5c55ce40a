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

// System holds the data that the system page shows about this replica.
type System struct {
	Mode     string // dev or production
	Version  string
	ID       string                                     // id of this process among the replicas
	Checks   func(ctx context.Context) []api.Dependency // state of the servers as this replica reaches them; when ctx ends, it returns the state known so far
	Passes   func() []Pass                              // the background passes of this replica
	Settings []Setting                                  // configuration without secrets
}

// Pass is a background pass of this replica.
type Pass struct {
	Name     string
	Every    time.Duration
	LastGood *time.Time // when it last ended without an error; nil if it never has
	Failed   bool       // the last run failed; the log has the reason
}

// Setting is one line of the configuration, worded for people.
type Setting struct{ Key, Value, Help string }

// checksShare is the part of a page's time limit for which the page waits for the checks.
const checksShare = 0.3

// checkDependencies checks the dependencies now. If a dependency does not answer within checksShare, its last known state is returned.
func (s System) checkDependencies(ctx context.Context) []dependency {
	if s.Checks == nil {
		return nil
	}
	ctx, cancel := deadline.Share(ctx, checksShare)
	defer cancel()
	return s.describeDependencies(s.Checks(ctx))
}

// describePublishedStates describes the dependencies in stateByName, the states that another replica published with its heartbeat, sorted by
// name.
func (s System) describePublishedStates(stateByName map[string]string) []dependency {
	list := make([]api.Dependency, 0, len(stateByName))
	for _, name := range slices.Sorted(maps.Keys(stateByName)) {
		list = append(list, api.Dependency{Name: name, State: stateByName[name]})
	}
	return s.describeDependencies(list)
}

// systemPages show all replicas, and this replica in detail.
type systemPages struct {
	system  System
	ledger  Ledger
	streams func() int // number of open streams
}

func (s *systemPages) registerRoutes(target *site) {
	readChecks := func(r *http.Request) ([]dependency, error) { return s.system.checkDependencies(r.Context()), nil }
	addLivePageWithRedis(target, "/system", readChecks, s.loadPage)
}

// loadPage returns the system page. checks are the states of the dependencies of this replica.
func (s *systemPages) loadPage(r *http.Request, checks []dependency) (page, error) {
	data := map[string]any{"System": s.system, "Checks": checks, "Streams": s.streams(), "Passes": []Pass(nil)}
	if s.system.Passes != nil {
		data["Passes"] = s.system.Passes()
	}
	all, err := s.readReplicas(r.Context())
	if err != nil {
		return page{}, err
	}
	data["Replicas"], data["Versions"] = all, mixedVersionsText(all)
	return page{title: "System", section: "system", template: "system", watch: updateTrigger{everyTick: true}, data: data}, nil
}
