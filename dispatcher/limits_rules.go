package dispatcher

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/fleetslots/dispatcher/limits"
)

// keptRules bounds how many lists of policies a replica keeps compiled.
const keptRules = 1000

// ruleBook compiles each list of policies once.
type ruleBook struct {
	mu  sync.Mutex
	all map[string][]*limits.Rule // by owner and text
}

func newRuleBook() *ruleBook { return &ruleBook{all: make(map[string][]*limits.Rule)} }

// of are the rules of a pool and of a batch in it; batch 0 is none.
func (b *ruleBook) of(pool string, batch int64, poolLimits, batchLimits json.RawMessage) ([]*limits.Rule, error) {
	rules, err := b.compiled("pool "+pool, poolLimits)
	if err != nil || batchLimits == nil {
		return rules, err
	}
	own, err := b.compiled(fmt.Sprintf("batch %d", batch), batchLimits)
	return append(append([]*limits.Rule{}, rules...), own...), err
}

func (b *ruleBook) compiled(owner string, text json.RawMessage) ([]*limits.Rule, error) {
	if text == nil {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	key := owner + "\x00" + string(text)
	if rules, ok := b.all[key]; ok {
		return rules, nil
	}
	policies, err := limits.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("policies of %s: %w", owner, err)
	}
	rules, err := limits.Compile(owner, policies)
	if err != nil {
		return nil, fmt.Errorf("policies of %s: %w", owner, err)
	}
	if len(b.all) >= keptRules {
		clear(b.all)
	}
	b.all[key] = rules
	return rules, nil
}
