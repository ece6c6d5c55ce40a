package limits

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

const (
	takeOverAfter    = 10 * time.Second // if a process that fills a rule runs no step for this time, another process may fill the rule
	maxHistoryDelay  = 15 * time.Second // maximum time between the moment when a start is allowed and the moment when the history has it
	maxStartsPerCall = 2000             // maximum number of starts that are sent to Redis in one call
)

// Start is one start of a history.
type Start struct {
	Lease string
	Ago   time.Duration // time since the start
	Facts Facts
}

// History returns the starts that happened at most maxAge ago, newest first.
type History func(ctx context.Context, maxAge time.Duration) iter.Seq2[Start, error]

// Rebuilder fills the counts of rules that Redis does not know, from a history of starts. It does not fill the rules of limit sets.
type Rebuilder struct {
	conn         *connection
	epochs       *epochs
	uses         *useCounts
	reservations *Reservations
	fill         script
}

// Rebuild fills the counts of those rules of a scope (a pool) that Redis does not know, from history. Then it adds the starts that happened
// during the call. After that, the rules are known. If another process is filling one of the rules, or if a calendar period ends before its
// starts are filled, Rebuild returns ErrBusy.
//
// The counts of calendar and sliding rules are exact. For a fixed window, a history does not show when the window began. Rebuild assumes the
// latest possible time, so that no limit is exceeded.
func (b *Rebuilder) Rebuild(ctx context.Context, scopeName string, rules []*Rule, history History) error {
	if err := checkScope(scopeName); err != nil {
		return err
	}
	began := b.conn.clock.local()
	epoch, err := b.epochs.currentEpoch(ctx, scopeName)
	if err != nil {
		return err
	}
	token := epoch + "~" + strconv.FormatUint(rand.Uint64(), 36)
	r := &rebuild{rebuilder: b, scope: scopeName, epoch: epoch, token: token, history: history, began: began, renewed: began}
	if err = r.claimRules(ctx, rules); err != nil || len(r.pasts) == 0 {
		return err
	}
	for _, part := range []func(context.Context) error{r.readPastStarts, r.sendAllPastStarts, r.countNewStarts, r.makeRulesKnown} {
		if err = part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Forget makes rules of a scope unknown to Redis, so that they are rebuilt. Call it if the rules did not count a start that happened. rules
// must not be empty.
func (b *Rebuilder) Forget(ctx context.Context, scopeName string, rules []*Rule) error {
	if err := checkScope(scopeName); err != nil {
		return err
	}
	keys := make([]string, len(rules))
	for i, r := range rules {
		keys[i] = r.keysInScope(scopeName).ruleKey
	}
	if err := b.conn.client.Del(ctx, keys...).Err(); err != nil {
		return wrapUnavailable(scopeName, err)
	}
	return nil
}

// rebuild is one call of Rebuild. While Redis stores the token of this call in a rule, no other process fills the rule.
type rebuild struct {
	rebuilder *Rebuilder
	scope     string
	epoch     string // epoch of Redis at the beginning of the call
	token     string // random text that identifies the call
	history   History
	pasts     []*pastStarts // one for each rule that this call fills
	began     time.Time     // beginning of the call, by the local clock
	renewed   time.Time     // time of the latest call of renewClaims, by the local clock
}

// elapsed returns the time since the beginning of the call.
func (r *rebuild) elapsed() time.Duration { return r.rebuilder.conn.clock.local().Sub(r.began) }

// claimRules claims those rules that Redis does not know, so that no other process fills them, and adds them to r.pasts.
func (r *rebuild) claimRules(ctx context.Context, rules []*Rule) error {
	if err := r.rebuilder.epochs.forgetOutdatedRules(ctx, r.scope, r.epoch, []Check{NewCheck("", "", rules, Facts{})}); err != nil {
		return err
	}
	for _, rule := range rules {
		isMine, err := r.runFillStep(ctx, "begin", rule, nil)
		if err != nil {
			return err
		}
		if isMine {
			r.pasts = append(r.pasts, newPastStarts(rule, r.rebuilder.conn.clock.now().Add(-r.elapsed())))
		}
	}
	return nil
}

// readPastStarts reads the history and collects, for each rule in r.pasts, the starts that the rule must count.
func (r *rebuild) readPastStarts(ctx context.Context) error {
	longest := leaseKeepTime
	for _, p := range r.pasts {
		longest = max(longest, p.rule.longestWindow)
	}
	for start, err := range r.history(ctx, longest) {
		if err != nil {
			return fmt.Errorf("reading the starts of %s: %w", r.scope, err)
		}
		start.Ago -= r.elapsed()
		for _, p := range r.pasts {
			if item, matters := p.addStart(start); matters {
				r.rebuilder.uses.recordUse(r.scope, item, 0)
			}
		}
		if err := r.renewClaims(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (r *rebuild) sendAllPastStarts(ctx context.Context) error {
	for _, p := range r.pasts {
		if err := r.sendPastStarts(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// sendPastStarts sends the starts in past to Redis in chunks. Then it sends the step "settle", after which other processes count new starts by
// the rule.
func (r *rebuild) sendPastStarts(ctx context.Context, past *pastStarts) error {
	for part := range slices.Chunk(past.recent, maxStartsPerCall) {
		if err := r.sendFillPart(ctx, past, part, nil, nil); err != nil {
			return err
		}
	}
	var subjects, args []any
	for digest, s := range past.subjects {
		for before, part := range past.startChunks(s, r.elapsed) {
			subjects = append(subjects, past.rule.keysInScope(r.scope).subjectPrefix+digest)
			args = append(append(args, before, len(part)), part...)
			if len(args) >= maxStartsPerCall {
				if err := r.sendFillPart(ctx, past, nil, subjects, args); err != nil {
					return err
				}
				subjects, args = nil, nil
			}
		}
	}
	if len(subjects) > 0 {
		if err := r.sendFillPart(ctx, past, nil, subjects, args); err != nil {
			return err
		}
	}
	past.renewalStep = "settle"
	_, err := r.runFillStep(ctx, past.renewalStep, past.rule, nil)
	return err
}

// sendFillPart sends one part of past to lua/fill.lua: either lease ids of recent starts, or the keys of subjects with the arguments that
// describe their starts.
func (r *rebuild) sendFillPart(ctx context.Context, past *pastStarts, recentLeases []string, subjectKeys, startArgs []any) error {
	args := []any{past.spec, len(recentLeases)}
	for _, lease := range recentLeases {
		args = append(args, lease)
	}
	if _, err := r.runFillStep(ctx, "fill", past.rule, subjectKeys, append(args, startArgs...)...); err != nil {
		return err
	}
	return r.renewClaims(ctx)
}

// countNewStarts counts the starts that the history received while readPastStarts and sendAllPastStarts ran.
func (r *rebuild) countNewStarts(ctx context.Context) error {
	rules := make([]*Rule, len(r.pasts))
	for i, p := range r.pasts {
		rules[i] = p.rule
	}
	for start, err := range r.history(ctx, r.elapsed()+maxHistoryDelay) {
		if err != nil {
			return fmt.Errorf("reading the latest starts of %s: %w", r.scope, err)
		}
		if err := r.rebuilder.reservations.Count(ctx, r.scope, []Check{NewCheck(start.Lease, "", rules, start.Facts)}, start.Ago); err != nil {
			return err
		}
		if err := r.renewClaims(ctx); err != nil {
			return err
		}
	}
	return nil
}

// makeRulesKnown makes the rules known to Redis. If Redis may have lost some of the sent data, it returns an error instead.
func (r *rebuild) makeRulesKnown(ctx context.Context) error {
	if err := r.rebuilder.epochs.requireEpoch(ctx, r.scope, r.epoch); err != nil {
		return err
	}
	for _, p := range r.pasts {
		if _, err := r.runFillStep(ctx, "known", p.rule, nil, p.rule.scriptSpecAt(r.rebuilder.conn.clock.now()), r.epoch); err != nil {
			return err
		}
	}
	return nil
}

// renewClaims prevents other processes from filling the rules. To do so, it sends the current step of lua/fill.lua again for each rule. It does
// nothing if it sent the steps less than takeOverAfter/4 ago. If another process is filling a rule, renewClaims returns ErrBusy.
func (r *rebuild) renewClaims(ctx context.Context) error {
	if r.rebuilder.conn.clock.local().Sub(r.renewed) < takeOverAfter/4 {
		return nil
	}
	for _, p := range r.pasts {
		isMine, err := r.runFillStep(ctx, p.renewalStep, p.rule, nil)
		if err != nil {
			return err
		}
		if !isMine {
			return fmt.Errorf("policy %s: %w", p.rule.Name, ErrBusy)
		}
	}
	r.renewed = r.rebuilder.conn.clock.local()
	return nil
}

// runFillStep runs one step of lua/fill.lua for a rule. fillsRule is true if this call fills the rule, and false if Redis already knows the
// rule. If another process is filling the rule, or if the calendar period in args has ended by the clock of Redis, the error is ErrBusy.
func (r *rebuild) runFillStep(ctx context.Context, step string, rule *Rule, subjectKeys []any, args ...any) (fillsRule bool, err error) {
	keys := append(append(scopeKeys(r.scope, 1+len(subjectKeys)), rule.keysInScope(r.scope).ruleArg), subjectKeys...)
	all := append([]any{step, r.token, takeOverAfter.Milliseconds()}, args...)
	reply, err := r.rebuilder.conn.runScriptForNumbers(ctx, maxSends, r.rebuilder.fill, r.scope, keys, all)
	switch {
	case err != nil:
		return false, err
	case len(reply) != 2:
		return false, newReplyError(r.scope, reply)
	case reply[1] == 2:
		return false, fmt.Errorf("policy %s: %w", rule.Name, ErrBusy)
	}
	return reply[1] == 1, nil
}
