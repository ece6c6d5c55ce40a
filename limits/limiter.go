package limits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// chunk is how many checks go into one call: a script blocks Redis while it runs.
const chunk = 200

// SettleWithin is how long a reservation may be open. A reservation that is open for longer keeps
// its scope shut (StatusUnsettled) until it is settled.
const SettleWithin = 12 * time.Second

// Limiter checks any number of rules. It is safe for concurrent use, also by
// several processes on one Redis.
type Limiter struct {
	client   redis.UniversalClient
	scripts  scripts
	breakers *redisconn.Breakers
	asks     *gather[Check, Answer]
	settles  *gather[entry, settled]
	takes    *gather[Taking, Taken]
	refused  *refused
	noted    *noted
	epochs   *epochs
	checked  checkedEpochs
	local    func() time.Time
	offset   atomic.Int64 // ns by which Redis' clock is ahead of ours, as of the latest answer
}

// New returns a limiter in the Redis of client, which nobody used yet. Any client will do; one
// that does not retry by itself and has short timeouts answers promptly when Redis is away.
func New(client redis.UniversalClient) *Limiter {
	local := time.Now //nolint:forbidigo // elapsed time, and a guess that Redis corrects
	l := &Limiter{client: client, scripts: newScripts(SettleWithin), breakers: redisconn.NewBreakers(client, local), refused: newRefused(), noted: newNoted(), local: local}
	l.epochs = newEpochs(client, l.breakers)
	l.asks, l.settles, l.takes = newGather(l.askAll), newGather(l.settleAll), newGather(l.takeAll)
	return l
}

// Check asks whether one start may happen.
type Check struct {
	Lease string // unique per start; no '|'
	Group string // checks of one group are alternatives, of which one at most starts; no '|'
	Items []Item // all of them must let it pass; none: it passes
}

// Item is one subject of a rule.
type Item struct {
	Rule    *Rule
	Subject Subject
}

// Status answers a Check.
type Status int

// The answers to a Check.
const (
	// StatusUnknown: a rule is not known and needs Rebuild.
	StatusUnknown Status = iota
	// StatusLimited: it may not start now; nothing was counted.
	StatusLimited
	// StatusPassed: it may start.
	StatusPassed
	// StatusUnsettled: reservations are overdue: see Overdue.
	StatusUnsettled
	// statusNoPeriod: the caller's clock is so wrong that no period fits.
	statusNoPeriod
)

// Answer to one Check.
type Answer struct {
	Status   Status
	Refusals []Refusal // with StatusLimited: one for each item that refuses
	Item     int       // with StatusUnknown: the first one that is not known
}

// Refusal is one item that lets nothing pass now.
type Refusal struct {
	Item    int           // its index
	Window  int           // of the rule, from 0: the one that opens last
	Wait    time.Duration // until it opens
	Oldest  time.Duration // how long ago the oldest start was that keeps it shut
	Pending bool          // only reservations keep it shut, which are settled soon: Wait is 0
}

// Last is the refusal that opens last.
func (a Answer) Last() Refusal {
	return slices.MaxFunc(a.Refusals, func(x, y Refusal) int { return int(x.Wait - y.Wait) })
}

// Reserve checks and reserves, one answer per check: what passed counts as used
// until it is settled by Count or Release. Sent again under its lease, a check
// passes again. After an error any of the leases may be reserved: settle them.
func (l *Limiter) Reserve(ctx context.Context, scope string, checks []Check) ([]Answer, error) {
	return l.ask(ctx, scope, "R", checks)
}

// Look checks and changes nothing.
func (l *Limiter) Look(ctx context.Context, scope string, checks []Check) ([]Answer, error) {
	return l.ask(ctx, scope, "P", checks)
}

func (l *Limiter) ask(ctx context.Context, scope, mode string, checks []Check) ([]Answer, error) {
	if err := checkAll(scope, checks); err != nil || len(checks) == 0 {
		return nil, err
	}
	answers, err := l.asks.ask(ctx, lane{scope, mode}, checks)
	if err != nil {
		return nil, err
	}
	if mode != "P" && l.refused.add(scope, checks, answers) {
		_ = l.tellRefused(ctx, scope) // for people: not worth failing for
	}
	return answers, nil
}

// askAll returns an answer only if Redis was in one epoch all the while: one that was
// restarted meanwhile may have older data, and is asked again.
func (l *Limiter) askAll(ctx context.Context, to lane, checks []Check) ([]Answer, error) {
	answers, err := l.askInEpoch(ctx, to, checks)
	if errors.Is(err, errNewEpoch) {
		answers, err = l.askInEpoch(ctx, to, checks)
	}
	return answers, err
}

func (l *Limiter) askInEpoch(ctx context.Context, to lane, checks []Check) ([]Answer, error) {
	epoch, err := l.epochs.of(ctx, to.scope)
	if err != nil {
		return nil, err
	}
	if err = l.dropOlder(ctx, to.scope, epoch, checks); err != nil {
		return nil, err
	}
	answers, err := l.askInParts(ctx, to, checks)
	if err != nil {
		return nil, err
	}
	if err = l.sameEpoch(ctx, to.scope, epoch); err == nil {
		return answers, nil
	}
	if to.mode == "R" {
		entries := make([]entry, len(checks))
		for i, c := range checks {
			entries[i] = entry{Check: c}
		}
		_, _ = l.settleAll(ctx, to, entries) // else they are found to be overdue
	}
	return nil, err
}

func (l *Limiter) askInParts(ctx context.Context, to lane, checks []Check) ([]Answer, error) {
	if len(checks) <= chunk {
		return l.askPart(ctx, to, checks)
	}
	out := make([]Answer, 0, len(checks))
	for part := range slices.Chunk(checks, chunk) {
		answers, err := l.askPart(ctx, to, part)
		if err != nil {
			return nil, err
		}
		out = append(out, answers...)
	}
	return out, nil
}

func (l *Limiter) askPart(ctx context.Context, to lane, checks []Check) ([]Answer, error) {
	misplaced := func(a Answer) bool { return a.Status == statusNoPeriod }
	answers, err := l.askOnce(ctx, to.scope, to.mode, checks)
	if err == nil && slices.ContainsFunc(answers, misplaced) { // now Redis' time is known
		if answers, err = l.askOnce(ctx, to.scope, to.mode, checks); err == nil && slices.ContainsFunc(answers, misplaced) {
			return nil, leaping()
		}
	}
	return answers, err
}

func (l *Limiter) askOnce(ctx context.Context, scope, mode string, checks []Check) ([]Answer, error) {
	keys, args := l.question(scope, checks)
	cmd, err := l.run(ctx, l.scripts.reserve[mode], scope, keys, args)
	if err != nil {
		return nil, err
	}
	if status, short := cmd.Val().(int64); short { // of quick.lua
		return []Answer{{Status: Status(status)}}, nil
	}
	reply, err := cmd.Int64Slice()
	if err != nil || len(reply) == 0 {
		return nil, fmt.Errorf("limits of %s: %w: reply %v: %w", scope, ErrUnavailable, reply, err)
	}
	l.learn(reply[0])
	answers := readAnswers(reply[1:])
	if len(answers) != len(checks) {
		return nil, fmt.Errorf("limits of %s: %w: %d answers to %d checks", scope, ErrUnavailable, len(answers), len(checks))
	}
	return answers, nil
}

// question is what reserve.lua is sent.
func (l *Limiter) question(scope string, checks []Check) (keys, args []any) {
	now := l.now()
	keys, args = append(make([]any, 0, 3+2*len(checks)), sharedKeys(scope, checks[0])...), make([]any, 0, 4*len(checks))
	for _, c := range checks {
		args = append(args, c.Lease, c.Group, len(c.Items))
		for _, item := range c.Items {
			in := item.Rule.in(scope)
			keys, args = append(keys, in.rule, in.subject(item.Subject)), append(args, item.Rule.specAt(now))
		}
	}
	return keys, args
}

// readAnswers reads what reserve.lua returns.
func readAnswers(reply []int64) (out []Answer) {
	for len(reply) >= 2 {
		a, n := Answer{Status: Status(reply[0])}, int(reply[1])
		reply = reply[2:]
		for e := range slices.Chunk(reply[:5*n], 5) {
			if a.Status != StatusLimited {
				a.Item = int(e[0])
				continue
			}
			a.Refusals = append(a.Refusals, Refusal{
				Item: int(e[0]), Window: int(e[1]), Wait: millis(e[2]), Oldest: millis(e[3]), Pending: e[4] == 1,
			})
		}
		out, reply = append(out, a), reply[5*n:]
	}
	return out
}

// now is Redis' time, as far as it is known.
func (l *Limiter) now() time.Time { return l.local().Add(time.Duration(l.offset.Load())) }

func (l *Limiter) learn(redisMS int64) { l.offset.Store(int64(time.UnixMilli(redisMS).Sub(l.local()))) }

func checkAll(scope string, checks []Check) error {
	if err := checkScope(scope); err != nil {
		return err
	}
	for _, c := range checks {
		if c.Lease == "" || strings.IndexByte(c.Lease, '|') >= 0 || strings.IndexByte(c.Group, '|') >= 0 {
			return fmt.Errorf("%w: lease %q of group %q", ErrInvalid, c.Lease, c.Group)
		}
	}
	return nil
}
