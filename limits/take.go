package limits

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Modes of take.lua. The last is that of takings with ids, which may be sent again.
const (
	modeTake      = "T"
	modePeek      = "P"
	modeReturn    = "R"
	modeTakeAgain = "T again"
)

// maxID is how long an id may be.
const maxID = 128

// Taking asks to count something of this cost, now.
type Taking struct {
	ID    string // sent again within RememberTakes it is counted once, with another cost not at all; empty: each time. At most 128 bytes
	Cost  int64  // 1 to the least Rule.MaxCost of its items
	Items []Item // of rules of CompileSet: all of them must allow the cost
}

// RememberTakes is how long a take is known by its id.
const RememberTakes = 10 * time.Minute

// Taken answers a Taking.
type Taken struct {
	Allowed   bool          // nothing is counted of one that is not
	Repeated  bool          // it was counted before, under this id
	OtherCost bool          // another cost was counted under this id, and not all given back: not allowed
	Items     []Standing    // in the order of the taking's
	Since     time.Time     // since when is counted, of the rule that began last; zero: all windows are counted whole
	Wait      time.Duration // until the cost is allowed; 0: it is
}

// Standing is how a subject stands to its rule: to the window of it that has least left.
type Standing struct {
	Window         int   // of the rule, from 0
	Used           int64 // more than Max where that was lowered since
	Max, Remaining int64
	Reset          time.Duration // until some of what is used ends; of a calendar and a fixed window: all of it
	Wait           time.Duration // until this rule allows the cost, which may be later than Reset
	Refuses        bool          // it does not allow the cost now
	Unknown        bool          // a rule of starts that Redis does not know (Usage): nothing else is set
}

// RefusedBy is the item that allows the cost last; -1: all allow it now.
func (t Taken) RefusedBy() int {
	at := -1
	for i, s := range t.Items {
		if s.Refuses && (at < 0 || s.Wait > t.Items[at].Wait) {
			at = i
		}
	}
	return at
}

// NewTaking is the taking of facts by the rules of a set. An id is of these facts: sent
// with others it is another taking.
func NewTaking(id string, cost int64, rules []*Rule, f Facts) Taking {
	t := Taking{ID: id, Cost: cost, Items: make([]Item, len(rules))}
	if id != "" {
		all, _ := f.value("facts")
		t.ID = digestOf([]value{{id, true}, {all, true}}).String()
	}
	for i, r := range rules {
		t.Items[i] = Item{Rule: r, Subject: r.Subject(f)}
	}
	return t
}

// Take counts each taking whose items all allow its cost, in the order of takings. One that
// is not allowed costs nothing. After an error any of them may have been counted: one with
// an id can be sent again. One without is sent once.
func (l *Limiter) Take(ctx context.Context, scope string, takings []Taking) ([]Taken, error) {
	mode := modeTakeAgain
	if slices.ContainsFunc(takings, func(t Taking) bool { return t.ID == "" }) {
		mode = modeTake
	}
	taken, err := l.askTakes(ctx, scope, mode, takings)
	for i, a := range taken {
		for k, s := range a.Items {
			if a.Allowed && !a.Repeated {
				l.noted.use(scope, takings[i].Items[k], s.Used)
			}
		}
	}
	return taken, err
}

// Peek says what Take would, and counts nothing.
func (l *Limiter) Peek(ctx context.Context, scope string, takings []Taking) ([]Taken, error) {
	return l.askTakes(ctx, scope, modePeek, takings)
}

// Return gives back of takes what was not used: so much, in all, of the take with that id
// and these items. It says how much was given back by now: sent again it gives back
// nothing more. Of an id that is not known any more, 0.
func (l *Limiter) Return(ctx context.Context, scope string, takings []Taking) ([]int64, error) {
	if err := checkTakings(scope, takings); err != nil {
		return nil, err
	}
	epoch, err := l.epochs.of(ctx, scope)
	if err != nil {
		return nil, err
	}
	out := make([]int64, 0, len(takings))
	for part := range slices.Chunk(takings, chunk) {
		reply, err := l.sendTakings(ctx, lane{scope, modeReturn}, epoch, part)
		if err == nil && len(reply) != 1+len(part) {
			err = wrongReply(scope, reply)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, reply[1:]...)
	}
	return out, nil
}

func (l *Limiter) askTakes(ctx context.Context, scope, mode string, takings []Taking) ([]Taken, error) {
	if err := checkTakings(scope, takings); err != nil || len(takings) == 0 {
		return nil, err
	}
	return l.takes.ask(ctx, lane{scope, mode}, takings)
}

// takeAll asks in the epoch of Redis that is known. If another one began meanwhile, what
// was counted before may be lost.
func (l *Limiter) takeAll(ctx context.Context, to lane, takings []Taking) ([]Taken, error) {
	epoch, err := l.epochs.of(ctx, to.scope)
	if err != nil {
		return nil, err
	}
	out := make([]Taken, 0, len(takings))
	for part := range slices.Chunk(takings, chunk) {
		taken, err := l.takePart(ctx, to, epoch, part)
		if err != nil {
			return nil, err
		}
		out = append(out, taken...)
	}
	if l.sameEpoch(ctx, to.scope, epoch) != nil {
		for i := range out {
			out[i].Since = l.now()
		}
	}
	return out, nil
}

func (l *Limiter) takePart(ctx context.Context, to lane, epoch string, takings []Taking) ([]Taken, error) {
	reply, err := l.sendTakings(ctx, to, epoch, takings)
	if err != nil {
		return nil, err
	}
	taken := readTaken(reply[1:], takings)
	if len(taken) != len(takings) {
		return nil, wrongReply(to.scope, reply)
	}
	return taken, nil
}

// sendTakings returns what take.lua says.
func (l *Limiter) sendTakings(ctx context.Context, to lane, epoch string, takings []Taking) ([]int64, error) {
	most, mode := sends, to.mode
	switch mode {
	case modeTake:
		most = 1
	case modeTakeAgain:
		mode = modeTake
	}
	for range 2 {
		keys, args := l.takingsArgs(to.scope, epoch, takings)
		cmd, err := l.runAtMost(ctx, most, l.scripts.take[mode], to.scope, keys, args)
		if err != nil {
			return nil, err
		}
		reply, err := cmd.Int64Slice()
		if err != nil || len(reply) == 0 {
			return nil, wrongReply(to.scope, reply)
		}
		if len(reply)%2 == 0 && mode != modeReturn { // of quick_take.lua
			reply = append(reply, 0)
			return []int64{0, reply[0], reply[1], 0, reply[2], reply[3], reply[4]}, nil
		}
		l.learn(reply[0])
		if len(reply) > 1 {
			return reply, nil
		} // else no calendar has that time: now Redis' time is known
	}
	return nil, leaping()
}

func wrongReply(scope string, reply []int64) error {
	return fmt.Errorf("limits of %s: %w: reply %v", scope, ErrUnavailable, reply)
}

// takingsArgs is what take.lua is sent.
func (l *Limiter) takingsArgs(scope, epoch string, takings []Taking) (keys, args []any) {
	now := l.now()
	keys, args = make([]any, 0, 3*len(takings)), append(make([]any, 0, 1+4*len(takings)), epoch)
	for _, t := range takings {
		first, at := len(keys), len(args)+1
		args = append(args, t.Cost, 0)
		for _, item := range t.Items {
			in := item.Rule.in(scope)
			keys, args = append(keys, in.rule, in.subject(item.Subject)), append(args, item.Rule.specAt(now))
		}
		if t.ID != "" {
			keys = append(keys, idKey(scope, t))
		}
		args[at] = len(keys) - first
	}
	return keys, args
}

func idKey(scope string, t Taking) string {
	if len(t.Items) > 0 {
		return t.Items[0].Rule.in(scope).ids + t.ID
	}
	return prefix(scope) + "i:" + t.ID
}

// readTaken reads what take.lua returns.
func readTaken(reply []int64, takings []Taking) (out []Taken) {
	const refused, repeated, otherCost = 0, 2, 3
	for _, t := range takings {
		if len(reply) < 2+4*len(t.Items) {
			return nil
		}
		one := Taken{
			Allowed: reply[0] != refused && reply[0] != otherCost, Repeated: reply[0] == repeated, OtherCost: reply[0] == otherCost,
			Items: make([]Standing, len(t.Items)),
		}
		if reply[1] != 0 {
			one.Since = time.UnixMilli(reply[1])
		}
		reply = reply[2:]
		for i, item := range t.Items {
			s := standing(item.Rule, reply[:4])
			one.Items[i], one.Wait, reply = s, max(one.Wait, s.Wait), reply[4:]
		}
		out = append(out, one)
	}
	return out
}

func standing(r *Rule, reply []int64) Standing {
	s := Standing{Window: int(reply[0]), Used: reply[1], Reset: millis(reply[2]), Wait: millis(reply[3]), Refuses: reply[3] > 0}
	s.Max = r.max(s.Window)
	s.Remaining = max(s.Max-s.Used, 0)
	return s
}

func checkTakings(scope string, takings []Taking) error {
	if err := checkScope(scope); err != nil {
		return err
	}
	for _, t := range takings {
		if len(t.ID) > maxID {
			return fmt.Errorf("%w: id %q", ErrInvalid, t.ID)
		}
		for _, item := range t.Items {
			if err := item.Rule.checkCost(t.Cost); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Rule) checkCost(cost int64) error {
	switch {
	case !r.ofSet:
		return fmt.Errorf("%w: policy %s is of no set: what it counts starts", ErrInvalid, r.Name)
	case cost < 1 || cost > r.MaxCost():
		return fmt.Errorf("%w: cost %d, policy %s allows 1 to %d at once", ErrInvalid, cost, r.Name, r.MaxCost())
	}
	return nil
}
