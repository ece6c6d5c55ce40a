package policies

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

// keptRules is the maximum number of compiled policy lists in the cache.
const keptRules = 1000

// ruleCache compiles lists of policies to rules, and caches the rules.
type ruleCache struct {
	mu  sync.Mutex
	all map[string][]*limits.Rule // the key is the owner, a zero byte and the text of the policies
}

func newRuleCache() *ruleCache { return &ruleCache{all: make(map[string][]*limits.Rule)} }

// startPolicies holds the policies that apply to one start, as JSON. nil means no policies.
type startPolicies struct {
	pool    string
	batch   int64
	profile string

	ofPool, ofBatch, ofProfile json.RawMessage
}

// ruleOwnerOfPool, ruleOwnerOfBatch and ruleOwnerOfProfile return the name of an owner of rules. The name begins with the kind of owner.
func ruleOwnerOfPool(poolName string) string { return string(decision.SubjectPool) + " " + poolName }

func ruleOwnerOfBatch(batchID int64) string {
	return fmt.Sprintf("%s %d", decision.SubjectBatch, batchID)
}

func ruleOwnerOfProfile(profileName string) string {
	return string(decision.SubjectProfile) + " " + profileName
}

// compiledRules returns the rules of a start: first the rules of its pool, then of its batch, then of its profile.
func (b *ruleCache) compiledRules(policies startPolicies) (rules []*limits.Rule, err error) {
	for _, from := range []struct {
		owner string
		text  json.RawMessage
	}{{ruleOwnerOfPool(policies.pool), policies.ofPool}, {ruleOwnerOfBatch(policies.batch), policies.ofBatch}, {ruleOwnerOfProfile(policies.profile), policies.ofProfile}} {
		own, err := b.compilePolicies(from.owner, from.text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, own...)
	}
	return rules, nil
}

func (b *ruleCache) compilePolicies(ruleOwner string, policiesJSON json.RawMessage) ([]*limits.Rule, error) {
	if policiesJSON == nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := ruleOwner + "\x00" + string(policiesJSON)
	if rules, ok := b.all[key]; ok {
		return rules, nil
	}
	policies, err := policy.Parse(policiesJSON)
	if err != nil {
		return nil, fmt.Errorf("reading the policies of %s: %w", ruleOwner, err)
	}
	rules, err := limits.Compile(ruleOwner, policies)
	if err != nil {
		return nil, fmt.Errorf("reading the policies of %s: %w", ruleOwner, err)
	}
	if len(b.all) >= keptRules {
		clear(b.all)
	}
	b.all[key] = rules
	return rules, nil
}
