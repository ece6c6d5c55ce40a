package limits

import (
	"fmt"
	"time"
)

// maxID is the maximum length of an id, in bytes.
const maxID = 128

// Taking is a request to a limit set to count a cost now.
type Taking struct {
	// ID has at most 128 bytes. If a take is sent several times with the same ID within TakeIDLifetime, it is counted once. A take without an ID
	// is counted each time.
	ID    string
	Cost  int64  // amount to count: from 1 to the lowest Rule.MaxCost of the items
	Items []Item // items with rules of CompileSet; all must allow the cost
}

// TakeIDLifetime is the time for which Redis keeps the ID of a take. It must be equal to REMEMBER in lua/takes.lua.
const TakeIDLifetime = 10 * time.Minute

// TakeResult is the answer to a Taking.
type TakeResult struct {
	Allowed  bool // if false, nothing was counted
	Repeated bool // whether the take was counted before under the same ID
	// OtherCost is true if a different cost was counted under the same ID and not given back. Then the take is not allowed.
	OtherCost bool
	Items     []WindowUse // the use for each item, in the order of the items of the take
	// Since is the latest time at which one of the rules began to count. Takes before this time may be missing. It is zero if each rule has
	// counted for its whole window.
	Since time.Time
	Wait  time.Duration // time until the cost is allowed, to the millisecond; 0 if it is allowed now
}

// WindowUse describes how much of a rule its subject has used. If the rule has several windows, WindowUse describes the window that allows the
// least further cost. But Wait and Refuses take all windows into account.
type WindowUse struct {
	Window         int   // the index of the window
	Used           int64 // amount used in the window; more than Max if Max was lowered after the use
	Max, Remaining int64
	// Reset is the time until the next part of Used expires. In a calendar period or a fixed window, all of Used expires then.
	Reset   time.Duration
	Wait    time.Duration // time until this rule allows the cost; may be longer than Reset
	Refuses bool          // whether this rule refuses the cost now
	Unknown bool          // only with Usage: Redis does not know the rule, which counts starts; then no other field is set
}

// RefusingItem returns the index of the item that refuses the cost for the longest time, or -1 if none refuses it.
func (t TakeResult) RefusingItem() int {
	refusing := -1
	for i, s := range t.Items {
		if s.Refuses && (refusing < 0 || s.Wait > t.Items[refusing].Wait) {
			refusing = i
		}
	}
	return refusing
}

// NewTaking returns a request to count a cost by the rules of a limit set for these facts. The ID of the take is derived from id and all
// facts. If id is empty, the take has no ID.
func NewTaking(id string, cost int64, rules []*Rule, facts Facts) Taking {
	t := Taking{ID: id, Cost: cost, Items: NewItems(rules, facts)}
	if id != "" {
		all, _ := facts.value("facts")
		t.ID = hashValues([]value{{id, true}, {all, true}}).String()
	}
	return t
}

// readTakeResults decodes the results in a reply of take.lua to takes. reply is the reply without its first number, the time of Redis. The
// result is nil if reply is too short.
func readTakeResults(reply []int64, takings []Taking) (results []TakeResult) {
	const refused, repeated, otherCost = 0, 2, 3 // as in lua/takes.lua
	for _, t := range takings {
		if len(reply) < 2+4*len(t.Items) {
			return nil
		}
		result := TakeResult{
			Allowed: reply[0] != refused && reply[0] != otherCost, Repeated: reply[0] == repeated, OtherCost: reply[0] == otherCost,
			Items: make([]WindowUse, len(t.Items)),
		}
		if reply[1] != 0 {
			result.Since = time.UnixMilli(reply[1])
		}
		reply = reply[2:]
		for i, item := range t.Items {
			s := readWindowUse(item.Rule, reply[:4])
			result.Items[i], result.Wait, reply = s, max(result.Wait, s.Wait), reply[4:]
		}
		results = append(results, result)
	}
	return results
}

func readWindowUse(rule *Rule, reply []int64) WindowUse {
	s := WindowUse{Window: int(reply[0]), Used: reply[1], Reset: millisToDuration(reply[2]), Wait: millisToDuration(reply[3]), Refuses: reply[3] > 0}
	s.Max = rule.windowMax(s.Window)
	s.Remaining = max(s.Max-s.Used, 0)
	return s
}

func (t Taking) validate() error {
	if len(t.ID) > maxID {
		return fmt.Errorf("%w: id %q has more than %d bytes", ErrInvalid, t.ID, maxID)
	}
	for _, item := range t.Items {
		if err := item.Rule.checkCost(t.Cost); err != nil {
			return err
		}
	}
	return nil
}

func (r *Rule) checkCost(cost int64) error {
	switch {
	case !r.isSetRule:
		return fmt.Errorf("%w: policy %s belongs to no limit set: it counts starts", ErrInvalid, r.Name)
	case cost < 1 || cost > r.MaxCost():
		return fmt.Errorf("%w: cost %d of policy %s must be between 1 and %d", ErrInvalid, cost, r.Name, r.MaxCost())
	}
	return nil
}
