package limits

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"
)

const (
	takeOver = 10 * time.Second // after which another may fill a rule that one began
	inFlight = 15 * time.Second // in which a start that was decided is in the history
	piece    = 2000             // starts filled in one call
)

// Start is one start of a history.
type Start struct {
	Lease string
	Ago   time.Duration // since it started
	Facts Facts
}

// History reads the starts of at most so long ago, the newest first.
type History func(ctx context.Context, within time.Duration) iter.Seq2[Start, error]

// Rebuild makes rules of one owner known that are not: it fills them with what the
// history has, makes them known only when what started meanwhile was added, and
// leaves known ones alone. ErrBusy: another process is at it.
//
// A calendar and sliding windows are exact afterwards. Where a fixed window began
// is not in a history: it is taken as late as it can be, so that none is exceeded.
func (l *Limiter) Rebuild(ctx context.Context, scope string, rules []*Rule, history History) error {
	if err := checkScope(scope); err != nil {
		return err
	}
	began := l.local()
	epoch, err := l.epochs.of(ctx, scope)
	if err != nil {
		return err
	}
	token := epoch + "~" + newToken()
	pasts, err := l.begin(ctx, scope, epoch, token, rules)
	if err != nil || len(pasts) == 0 {
		return err
	}
	hold := &holding{limiter: l, scope: scope, token: token, pasts: pasts, last: began}
	if err := l.readPast(ctx, hold, history); err != nil {
		return err
	}
	for _, p := range pasts {
		if err := l.fill(ctx, hold, p); err != nil {
			return err
		}
	}
	if err := l.catchUp(ctx, hold, history, l.local().Sub(began)+inFlight); err != nil {
		return err
	}
	if err := l.sameEpoch(ctx, scope, epoch); err != nil { // some of it may be lost
		return err
	}
	for _, p := range pasts {
		if _, err := l.step(ctx, scope, "known", token, p.rule, nil, p.rule.specAt(l.now()), epoch); err != nil {
			return err
		}
	}
	return nil
}

// holding keeps others from taking over the rules that this process fills, however long it
// takes.
type holding struct {
	limiter *Limiter
	scope   string
	token   string
	pasts   []*past
	last    time.Time // when it was told, by the local clock
}

// on says now and then that this process still fills. ErrBusy: another one took
// over.
func (h *holding) on(ctx context.Context) error {
	if h.limiter.local().Sub(h.last) < takeOver/4 {
		return nil
	}
	for _, p := range h.pasts {
		mine, err := h.limiter.step(ctx, h.scope, p.at, h.token, p.rule, nil)
		if err != nil {
			return err
		}
		if !mine {
			return fmt.Errorf("policy %s: %w", p.rule.Name, ErrBusy)
		}
	}
	h.last = h.limiter.local()
	return nil
}

func (l *Limiter) readPast(ctx context.Context, hold *holding, history History) error {
	longest := remembered
	for _, p := range hold.pasts {
		longest = max(longest, p.rule.longest)
	}
	for start, err := range history(ctx, longest) {
		if err != nil {
			return fmt.Errorf("reading what started in %s: %w", hold.scope, err)
		}
		for _, p := range hold.pasts {
			if item, matters := p.add(start); matters {
				l.noted.use(hold.scope, item, 0)
			}
		}
		if err := hold.on(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (l *Limiter) begin(ctx context.Context, scope, epoch, token string, rules []*Rule) (pasts []*past, err error) {
	if err := l.dropOlder(ctx, scope, epoch, []Check{NewCheck("", "", rules, Facts{})}); err != nil {
		return nil, err
	}
	for _, r := range rules {
		done, err := l.step(ctx, scope, "begin", token, r, nil)
		if err != nil {
			return nil, err
		}
		if done {
			pasts = append(pasts, newPast(r, l.now()))
		}
	}
	return pasts, nil
}

// catchUp counts what started while the history was read.
func (l *Limiter) catchUp(ctx context.Context, hold *holding, history History, within time.Duration) error {
	scope, rules := hold.scope, make([]*Rule, len(hold.pasts))
	for i, p := range hold.pasts {
		rules[i] = p.rule
	}
	for start, err := range history(ctx, within) {
		if err != nil {
			return fmt.Errorf("reading what started in %s meanwhile: %w", scope, err)
		}
		if err := l.Count(ctx, scope, []Check{NewCheck(start.Lease, "", rules, start.Facts)}, start.Ago); err != nil {
			return err
		}
		if err := hold.on(ctx); err != nil {
			return err
		}
	}
	return nil
}

// NewCheck is the check of a start by rules.
func NewCheck(lease, group string, rules []*Rule, f Facts) Check {
	c := Check{Lease: lease, Group: group, Items: make([]Item, len(rules))}
	for i, r := range rules {
		c.Items[i] = Item{Rule: r, Subject: r.Subject(f)}
	}
	return c
}

// Forget makes rules unknown, at least one, in one command, so that they are filled
// again before they are known: something started that they did not count.
func (l *Limiter) Forget(ctx context.Context, scope string, rules []*Rule) error {
	if err := checkScope(scope); err != nil {
		return err
	}
	keys := make([]string, len(rules))
	for i, r := range rules {
		keys[i] = r.in(scope).key
	}
	if err := l.client.Del(ctx, keys...).Err(); err != nil {
		return unavailable(scope, err)
	}
	return nil
}

// step takes one step of fill.lua; false: the rule is known already.
func (l *Limiter) step(ctx context.Context, scope, name, token string, r *Rule, subjects []any, args ...any) (bool, error) {
	keys := append(append(keysOf(scope, 1+len(subjects)), r.in(scope).rule), subjects...)
	all := append([]any{name, token, takeOver.Milliseconds()}, args...)
	cmd, err := l.run(ctx, l.scripts.fill, scope, keys, all)
	if err != nil {
		return false, err
	}
	reply, err := cmd.Int64Slice()
	if err != nil || len(reply) != 2 {
		return false, fmt.Errorf("limits of %s: %w: reply %v: %w", scope, ErrUnavailable, reply, err)
	}
	l.learn(reply[1])
	if reply[0] == 2 {
		return false, fmt.Errorf("policy %s: %w", r.Name, ErrBusy)
	}
	return reply[0] == 1, nil
}

// fill sends what a rule counted, in pieces, and lets others count from then on.
func (l *Limiter) fill(ctx context.Context, hold *holding, p *past) error {
	scope, token := hold.scope, hold.token
	send := func(recent []string, subjects, args []any) error {
		head := []any{p.rule.specAt(l.now()), len(recent)}
		for _, lease := range recent {
			head = append(head, lease)
		}
		if _, err := l.step(ctx, scope, "fill", token, p.rule, subjects, append(head, args...)...); err != nil {
			return err
		}
		return hold.on(ctx)
	}
	for part := range slices.Chunk(p.recent, piece) {
		if err := send(part, nil, nil); err != nil {
			return err
		}
	}
	var subjects, args []any
	for digest, s := range p.subjects {
		for before, part := range p.parts(s) {
			subjects = append(subjects, p.rule.in(scope).subjects+digest)
			args = append(append(args, before, len(part)), part...)
			if len(args) < piece {
				continue
			}
			if err := send(nil, subjects, args); err != nil {
				return err
			}
			subjects, args = nil, nil
		}
	}
	if len(subjects) > 0 {
		if err := send(nil, subjects, args); err != nil {
			return err
		}
	}
	p.at = "settle"
	_, err := l.step(ctx, scope, p.at, token, p.rule, nil)
	return err
}
