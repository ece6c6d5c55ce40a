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
	keptSets = 1000
	idleSets = 600 // readings of versions without a take, after which a set is forgotten
)

// Sets answers callers by the policies of limit sets. A set that is in use is kept in memory,
// so that a take asks Redis and nobody else. It is safe for concurrent use.
type Sets struct {
	config Config
	takes  takeCounts

	mu    sync.RWMutex
	known map[string]*knownSet
	drops int // how often a set was forgotten

	readings int // of versions, by Follow
}

// knownSet is a set that is in use.
type knownSet struct {
	store.LimitSetVersion
	rules  []*limits.Rule
	counts outcomes
	used   atomic.Bool // since its version was read last
	idle   int         // readings of versions without a take; of Follow alone
}

// setScope is where the takes of a set are counted. No pool has such a name.
func setScope(set string) string { return "set/" + set }

func newSets(config Config) *Sets {
	return &Sets{config: config, takes: newTakeCounts(config.Meters), known: make(map[string]*knownSet)}
}

// of returns a set by its name; store.ErrNotFound, devices.ErrUnavailable. If a set was forgotten
// while this one was read, it is read again: it may be the one that was changed or deleted.
func (s *Sets) of(ctx context.Context, name string) (*knownSet, error) {
	set, drops := s.look(name)
	for set == nil {
		read, err := s.read(ctx, name)
		if err != nil {
			return nil, err
		}
		if s.keep(read, drops) {
			set = read
		} else {
			set, drops = s.look(name)
		}
	}
	if !set.used.Load() { // the line of memory is shared by all takes
		set.used.Store(true)
	}
	return set, nil
}

// look returns the set if it is kept, and the number of sets forgotten so far.
func (s *Sets) look(name string) (set *knownSet, drops int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known[name], s.drops
}

func (s *Sets) read(ctx context.Context, name string) (*knownSet, error) {
	found, err := s.config.Ledger.LimitSet(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("reading limit set %s: %w", name, err)
	}
	rules, err := compileSet(found)
	if err != nil { // of a later release
		return nil, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	return &knownSet{
		LimitSetVersion: store.LimitSetVersion{Name: name, Version: found.Version, CreatedAt: found.CreatedAt},
		rules:           rules,
	}, nil
}

func compileSet(set store.LimitSet) ([]*limits.Rule, error) {
	policies, err := ParseSet(set.Limits)
	if err != nil {
		return nil, fmt.Errorf("policies of limit set %s: %w", set.Name, err)
	}
	return limits.CompileSet("limit set "+set.Name, policies)
}

// ParseSet reads what is kept of the policies of a set.
func ParseSet(kept json.RawMessage) (policies []policy.Policy, err error) {
	if kept == nil {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(kept))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&policies); err == nil {
		err = policy.ValidateSet(policies)
	}
	return policies, err
}

// keep keeps a set that was read, with its metrics, and reports whether it did. It does not if a
// set was forgotten since drops was read.
func (s *Sets) keep(set *knownSet, drops int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if drops != s.drops {
		return false
	}
	set.counts = s.takes.of(set.Name, set.rules)
	s.known[set.Name] = set
	for name := range s.known {
		if len(s.known) <= keptSets {
			break
		}
		delete(s.known, name)
	}
	return true
}

// Forget has the set read anew: it was changed.
func (s *Sets) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name)
}

func (s *Sets) forget(name string) {
	s.drops++
	delete(s.known, name)
}

// Deleted forgets a set that is no more, with its metrics.
func (s *Sets) Deleted(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name)
	s.takes.forget(name)
}

// Follow forgets the sets that any replica changed or deleted since they were read, and the sets
// that are no longer used. It reads one row for each set in use. Once in idleSets calls it also
// reads a row for each set with metrics, so that the metrics of deleted sets end.
func (s *Sets) Follow(ctx context.Context) error {
	kept := s.inUse()
	gone := make(map[string]bool, len(kept)) // until its row is found
	for name := range kept {
		gone[name] = true
	}
	s.addCounted(gone)
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
		s.Deleted(name)
	}
	return nil
}

// addCounted adds the sets that have metrics, once in idleSets calls.
func (s *Sets) addCounted(names map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readings++; s.readings%idleSets != 0 {
		return
	}
	for name := range s.takes.shown {
		names[name] = true
	}
}

// inUse are the sets that are kept, without those that nobody used for long.
func (s *Sets) inUse() map[string]*knownSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make(map[string]*knownSet, len(s.known))
	for name, set := range s.known {
		if set.idle++; set.used.Swap(false) {
			set.idle = 0
		}
		if set.idle > idleSets {
			delete(s.known, name)
			continue
		}
		kept[name] = set
	}
	return kept
}
