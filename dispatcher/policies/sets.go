package policies

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/store"
)

const (
	keptSets = 1000 // maximum number of sets in memory
	idleSets = 600  // number of version reads without a take after which a set is forgotten
)

// Sets decides whether takes (requests of callers to a limit set) are allowed. It keeps each set in use in memory, so that a take needs
// only a call to Redis. It is safe for concurrent use.
type Sets struct {
	config Config
	takes  takeMetrics

	mu     sync.RWMutex
	byName map[string]*cachedSet
	drops  int // number of times a set was forgotten

	readings int // number of version reads by ForgetChanged
}

// cachedSet is a limit set that is in use, with its compiled policies.
type cachedSet struct {
	store.LimitSetVersion
	rules  []*limits.Rule
	counts takeCounters
	used   atomic.Bool // true if a take used the set since the last read of the set's version
	idle   int         // consecutive version reads without a take; only ForgetChanged uses it
}

// limiterScopeOfSet returns the scope in which Redis counts the takes of the set. No name of a pool begins with this prefix.
func limiterScopeOfSet(setName string) string { return "set/" + setName }

func newSets(config Config) *Sets {
	return &Sets{config: config, takes: newTakeMetrics(config.Meters), byName: make(map[string]*cachedSet)}
}

// loadSet returns the set with this name. It returns store.ErrNotFound if there is none, and devices.ErrUnavailable if its policies cannot be
// compiled. If any set is removed from memory during the read, loadSet reads again, because this set may have been changed.
func (s *Sets) loadSet(ctx context.Context, setName string) (*cachedSet, error) {
	set, drops := s.cachedSetByName(setName)
	for set == nil {
		read, err := s.readSet(ctx, setName)
		if err != nil {
			return nil, err
		}
		if s.cacheSet(read, drops) {
			set = read
		} else {
			set, drops = s.cachedSetByName(setName)
		}
	}
	if !set.used.Load() { // avoids writes to a cache line that all takes share
		set.used.Store(true)
	}
	return set, nil
}

// cachedSetByName returns the set with this name, or nil if it is not in memory. cacheVersion changes each time a set is removed from memory.
func (s *Sets) cachedSetByName(name string) (set *cachedSet, cacheVersion int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name], s.drops
}

func (s *Sets) readSet(ctx context.Context, setName string) (*cachedSet, error) {
	found, err := s.config.Ledger.LimitSet(ctx, setName)
	if err != nil {
		return nil, fmt.Errorf("reading limit set %s: %w", setName, err)
	}
	rules, err := compileSetRules(found)
	if err != nil { // a later release may have written policies that this one does not know
		return nil, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return &cachedSet{
		LimitSetVersion: store.LimitSetVersion{Name: setName, Version: found.Version, CreatedAt: found.CreatedAt},
		rules:           rules,
	}, nil
}

func compileSetRules(set store.LimitSet) ([]*limits.Rule, error) {
	policies, err := ParseSet(set.Limits)
	if err != nil {
		return nil, fmt.Errorf("reading the policies of limit set %s: %w", set.Name, err)
	}
	return limits.CompileSet("limit set "+set.Name, policies)
}

// ParseSet decodes and validates the policies of a limit set as the ledger stores them. If storedPolicies is nil, there are no policies.
func ParseSet(storedPolicies json.RawMessage) (policies []policy.Policy, err error) {
	if storedPolicies == nil {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(storedPolicies))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&policies); err == nil {
		err = policy.ValidateSet(policies)
	}
	return policies, err
}

// cacheSet keeps a set in memory and creates its metrics. It does nothing and returns false if any set was removed from memory after
// cachedSetByName returned versionBeforeRead.
func (s *Sets) cacheSet(set *cachedSet, versionBeforeRead int) (isCached bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if versionBeforeRead != s.drops {
		return false
	}
	set.counts = s.takes.newTakeCounters(set.Name, set.rules)
	s.byName[set.Name] = set
	for name := range s.byName {
		if len(s.byName) <= keptSets {
			break
		}
		delete(s.byName, name)
	}
	return true
}

// Forget removes a changed set from memory. The next take reads it again.
func (s *Sets) Forget(setName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropSet(setName)
}

func (s *Sets) dropSet(setName string) {
	s.drops++
	delete(s.byName, setName)
}

// ForgetDeleted removes a deleted set from memory and deletes its metrics.
func (s *Sets) ForgetDeleted(setName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropSet(setName)
	s.takes.deleteSetMetrics(setName)
}

// ForgetChanged forgets unused sets, and sets that any replica has changed or deleted. It reads one row for each set in use. Once in idleSets
// calls, it also reads one row for each set with metrics, to delete the metrics of deleted sets.
func (s *Sets) ForgetChanged(ctx context.Context) error {
	kept := s.setsInUse()
	gone := make(map[string]bool, len(kept)) // a name is removed when its row is found
	for name := range kept {
		gone[name] = true
	}
	s.addNamesOfSetsWithMetrics(gone)
	if len(gone) == 0 {
		return nil
	}
	found, err := s.config.Ledger.LimitSetVersions(ctx, slices.Collect(maps.Keys(gone)))
	if err != nil {
		return fmt.Errorf("reading the versions of limit sets: %w", err)
	}
	for _, now := range found {
		delete(gone, now.Name)
		set := kept[now.Name]
		if set != nil && (set.Version != now.Version || !set.CreatedAt.Equal(now.CreatedAt)) {
			s.Forget(now.Name)
		}
	}
	for name := range gone {
		s.ForgetDeleted(name)
	}
	return nil
}

// addNamesOfSetsWithMetrics adds the names of the sets that have metrics to setNames. It does so only once in idleSets calls.
func (s *Sets) addNamesOfSetsWithMetrics(setNames map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readings++; s.readings%idleSets != 0 {
		return
	}
	for name := range s.takes.refusalSeries {
		setNames[name] = true
	}
}

// setsInUse returns the sets in memory, by name. It first removes the sets without a take during the last idleSets calls.
func (s *Sets) setsInUse() (byName map[string]*cachedSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make(map[string]*cachedSet, len(s.byName))
	for name, set := range s.byName {
		if set.idle++; set.used.Swap(false) {
			set.idle = 0
		}
		if set.idle > idleSets {
			delete(s.byName, name)
			continue
		}
		kept[name] = set
	}
	return kept
}
