package limits

import (
	"context"
	"slices"
)

// These are the modes of lua/take.lua. The script does not know modeTakeRepeatable, and receives modeTake instead. A call in
// modeTakeRepeatable may be sent again, because all its takes have ids.
const (
	modeTake           = "T"
	modePeek           = "P"
	modeReturn         = "R"
	modeTakeRepeatable = "T again"
)

// Takes counts the costs of takes. A take is a request to a limit set to count a cost now.
type Takes struct {
	conn      *connection
	epochs    *epochs
	uses      *useCounts
	takeCalls *coalescer[Taking, TakeResult]
	scripts   map[string]script // key: mode of lua/take.lua
}

// Take counts the cost of each take if all its items allow the cost, and returns one result for each take. After an error, each take may
// have been counted. Then a take with an ID can be sent again. A call that contains a take without an ID is sent to Redis only once.
func (t *Takes) Take(ctx context.Context, set string, takings []Taking) ([]TakeResult, error) {
	mode := modeTakeRepeatable
	if slices.ContainsFunc(takings, func(one Taking) bool { return one.ID == "" }) {
		mode = modeTake
	}
	taken, err := t.askByMode(ctx, set, mode, takings)
	for i, a := range taken {
		for k, s := range a.Items {
			if a.Allowed && !a.Repeated {
				t.uses.recordUse(set, takings[i].Items[k], s.Used)
			}
		}
	}
	return taken, err
}

// Peek returns the results that Take would return for the takes, and counts nothing.
func (t *Takes) Peek(ctx context.Context, set string, takings []Taking) ([]TakeResult, error) {
	return t.askByMode(ctx, set, modePeek, takings)
}

// Return gives back the unused part of earlier takes. Each Taking must have the ID and the items of its earlier take. Its Cost is the total to
// give back of this take, so a repeated call gives back nothing more. For each Taking, the result is how much has been given back in total. It
// is 0 if Redis no longer knows the ID.
func (t *Takes) Return(ctx context.Context, set string, takings []Taking) (returnedCosts []int64, err error) {
	if err := validateAll(set, takings); err != nil {
		return nil, err
	}
	epoch, err := t.epochs.currentEpoch(ctx, set)
	if err != nil {
		return nil, err
	}
	return sendInChunks(takings, func(part []Taking) ([]int64, error) {
		reply, err := t.sendTakings(ctx, callKey{set, modeReturn}, epoch, part)
		if err != nil {
			return nil, err
		}
		if len(reply) != 1+len(part) {
			return nil, newReplyError(set, reply)
		}
		return reply[1:], nil
	})
}

func (t *Takes) askByMode(ctx context.Context, set, mode string, takings []Taking) ([]TakeResult, error) {
	if err := validateAll(set, takings); err != nil || len(takings) == 0 {
		return nil, err
	}
	return t.takeCalls.ask(ctx, callKey{set, mode}, takings)
}

// askAll sends the takes in the current epoch of Redis. If another epoch begins during the call, earlier counts may be lost. Then askAll sets
// Since of each result to the current time.
func (t *Takes) askAll(ctx context.Context, key callKey, takings []Taking) ([]TakeResult, error) {
	epoch, err := t.epochs.currentEpoch(ctx, key.scope)
	if err != nil {
		return nil, err
	}
	taken, err := t.askInEpoch(ctx, key, epoch, takings)
	if err == nil && t.epochs.requireEpoch(ctx, key.scope, epoch) != nil {
		for i := range taken {
			taken[i].Since = t.conn.clock.now()
		}
	}
	return taken, err
}

func (t *Takes) askInEpoch(ctx context.Context, key callKey, epoch string, takings []Taking) ([]TakeResult, error) {
	return sendInChunks(takings, func(part []Taking) ([]TakeResult, error) {
		reply, err := t.sendTakings(ctx, key, epoch, part)
		if err != nil {
			return nil, err
		}
		taken := readTakeResults(reply[1:], part)
		if len(taken) != len(part) {
			return nil, newReplyError(key.scope, reply)
		}
		return taken, nil
	})
}

func (t *Takes) sendTakings(ctx context.Context, key callKey, epoch string, takings []Taking) (reply []int64, err error) {
	attempts, mode := maxSends, key.mode
	switch mode {
	case modeTake:
		attempts = 1
	case modeTakeRepeatable:
		mode = modeTake
	}
	keys, args := t.encodeTakings(key.scope, epoch, takings)
	reply, err = t.conn.runScriptForNumbers(ctx, attempts, t.scripts[mode], key.scope, keys, args)
	if err != nil {
		return nil, err
	}
	if len(reply) == 1 {
		return nil, errNoPeriod
	}
	return reply, nil
}

func (t *Takes) encodeTakings(set, epoch string, takings []Taking) (keys, args []any) {
	now := t.conn.clock.now()
	keys, args = make([]any, 0, 3*len(takings)), append(make([]any, 0, 1+4*len(takings)), epoch)
	for _, one := range takings {
		firstKey, keyCountIndex := len(keys), len(args)+1
		args = append(args, one.Cost, 0)
		keys, args = appendItems(keys, args, set, one.Items, now)
		if one.ID != "" {
			keys = append(keys, keyPrefix(set)+"i:"+one.ID)
		}
		args[keyCountIndex] = len(keys) - firstKey
	}
	return keys, args
}
