package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators"
)

// Limits of takes.
const (
	maxTakes     = 100 // takes in one request
	maxTakeID    = 128 // in bytes
	maxCost      = 1000
	maxFacts     = 32
	maxFactName  = 64      // in bytes
	maxFactValue = 1 << 10 // in bytes
	maxHighest   = 100
)

type takeBody struct {
	ID    string                     `json:"id"`
	Facts map[string]json.RawMessage `json:"facts"`
	Cost  *int64                     `json:"cost"`
}

// readTake checks the take in a body and converts it to the form of package policies. errorPrefix is the path of the take in errors, and
// tokenName is the name of the caller's token.
func (t takeBody) readTake(errorPrefix, tokenName string) (take policies.Take, err error) {
	take = policies.Take{Caller: tokenName, ID: t.ID, Cost: 1}
	if t.Cost != nil {
		take.Cost = *t.Cost
	}
	switch {
	case len(t.ID) > maxTakeID:
		return take, invalidProblem("%sid: at most %d bytes", errorPrefix, maxTakeID)
	case take.Cost < 1 || take.Cost > maxCost:
		return take, invalidProblem("%scost: must be between 1 and %d", errorPrefix, maxCost)
	}
	take.Facts, err = readFacts(errorPrefix, t.Facts)
	return take, err
}

// readFacts converts values, the facts of a take, to text. errorPrefix is the path of the take in errors.
func readFacts(errorPrefix string, values map[string]json.RawMessage) (textByName map[string]string, err error) {
	facts := make(map[string]string, len(values))
	for name, value := range values {
		text := string(value)
		switch text[0] {
		case '"':
			_ = json.Unmarshal(value, &text) // the value was decoded before, so it is valid
		case '{', '[', 'n':
			return nil, invalidProblem("%sfacts.%s: must be a string, a number, true or false", errorPrefix, name)
		}
		facts[name] = text
	}
	return facts, checkFacts(errorPrefix, facts)
}

// checkFacts returns an error if there are too many facts, or a name or a value is too long. errorPrefix is the path of the take in errors.
func checkFacts(errorPrefix string, facts map[string]string) error {
	if len(facts) > maxFacts {
		return invalidProblem("%sfacts: at most %d", errorPrefix, maxFacts)
	}
	for name, value := range facts {
		if name == "" || len(name) > maxFactName {
			return invalidProblem("%sfacts: a name must have 1-%d bytes", errorPrefix, maxFactName)
		}
		if len(value) > maxFactValue {
			return invalidProblem("%sfacts.%s: at most %d bytes", errorPrefix, name, maxFactValue)
		}
	}
	return nil
}

// readTakes reads a body with one take, or with a list of takes. isList is true for a list.
func readTakes(ctx huma.Context) (takes []policies.Take, isList bool, err error) {
	var body struct {
		takeBody

		Takes *[]takeBody `json:"takes"`
	}
	if err := readJSONBody(ctx, &body); err != nil {
		return nil, false, err
	}
	caller := operatorName(ctx.Context())
	if body.Takes == nil {
		take, err := body.readTake("", caller)
		return []policies.Take{take}, false, err
	}
	if body.ID != "" || body.Facts != nil || body.Cost != nil {
		return nil, true, invalidProblem("takes: not together with id, facts or cost, which belong to a single take")
	}
	if n := len(*body.Takes); n < 1 || n > maxTakes {
		return nil, true, invalidProblem("takes: must have between 1 and %d entries", maxTakes)
	}
	for i, one := range *body.Takes {
		take, err := one.readTake(takeErrorPrefix(i, true), caller)
		if err != nil {
			return nil, true, err
		}
		takes = append(takes, take)
	}
	return takes, true, nil
}

// takeErrorPrefix returns the path of the take with this index in its request, for error messages. For a single take it is empty.
func takeErrorPrefix(index int, isList bool) string {
	if !isList {
		return ""
	}
	return fmt.Sprintf("takes[%d].", index)
}

// newTakeHandler returns a handler for takes (requests of callers to a limit set). ask is Sets.Take or Sets.Peek: it returns a verdict for
// each take in a limit set. The handler answers with these verdicts.
func (l *limitSetOperations) newTakeHandler(ask func(context.Context, string, []policies.Take) ([]policies.Verdict, error)) (handler func(huma.Context) error) {
	return func(ctx huma.Context) error {
		usesStatus, err := wantsRefusalAsStatus(ctx)
		if err != nil {
			return err
		}
		takes, isList, err := readTakes(ctx)
		if err != nil {
			return err
		}
		if isList && usesStatus {
			return invalidProblem("query.status: 429 is only for a single take")
		}
		verdicts, err := ask(ctx.Context(), ctx.Param("set"), takes)
		if err != nil {
			return takeProblem(err, isList)
		}
		if i := slices.IndexFunc(verdicts, func(v policies.Verdict) bool { return v.OtherCost }); i >= 0 {
			return invalidProblem("%scost: a take with this id and these facts had another cost; each take needs its own id", takeErrorPrefix(i, isList))
		}
		switch {
		case isList:
			answer := operators.TakenList{Takes: make([]operators.Taken, len(verdicts))}
			for i, v := range verdicts {
				answer.Takes[i] = toAPITaken(v, takes[i].Cost)
			}
			return writeResponse(ctx, http.StatusOK, operators.TypeJSON, answer)
		case usesStatus:
			return writeTakeWithStatus(ctx, verdicts[0], takes[0].Cost)
		}
		return writeResponse(ctx, http.StatusOK, operators.TypeJSON, toAPITaken(verdicts[0], takes[0].Cost))
	}
}

// takeProblem converts err to a problem if it is a CostError (a cost that a policy can never allow), and returns any other error unchanged.
// isList is true if the request has a list of takes.
func takeProblem(err error, isList bool) error {
	if high, ok := errors.AsType[*policies.CostError](err); ok {
		return invalidProblem("%scost: %v", takeErrorPrefix(high.Take, isList), high)
	}
	return err
}

// wantsRefusalAsStatus reports whether the client asks for a response whose status (200 or 429) shows whether the take is allowed.
func wantsRefusalAsStatus(ctx huma.Context) (isWanted bool, err error) {
	switch status := ctx.Query("status"); status {
	case "", "200":
		return false, nil
	case "429":
		return true, nil
	}
	return false, invalidProblem("query.status: must be 200 or 429")
}

func toAPITaken(verdict policies.Verdict, cost int64) operators.Taken {
	taken := operators.Taken{
		Allowed: verdict.Allowed, Cost: cost, Limits: make([]operators.LimitStanding, len(verdict.Items)), RetryAfterMS: roundUpToUnits(verdict.Wait, time.Millisecond),
		CountedSince: apiTimeIfSet(verdict.Since), Repeated: verdict.Repeated, Unchecked: verdict.Unchecked,
	}
	for i, s := range verdict.Items {
		taken.Limits[i] = operators.LimitStanding{Policy: verdict.Rules[i].Name, Window: s.Window, Max: s.Max, Remaining: s.Remaining, ResetMS: roundUpToUnits(s.Reset, time.Millisecond)}
	}
	if !verdict.Allowed {
		if at := verdict.RefusingItem(); at >= 0 {
			taken.RefusedBy = verdict.Rules[at].Name
		}
	}
	return taken
}

// roundUpToUnits converts duration to whole units, rounded up, so that a client that waits for this number of units does not return too early.
func roundUpToUnits(duration, unit time.Duration) (units int64) {
	return int64((duration + unit - 1) / unit)
}

// refusedTake is the body of a refused take: a problem together with the fields of the normal response.
type refusedTake struct { //nolint:errname // an answer
	operators.Problem
	operators.Taken
}

// writeTakeWithStatus answers a take that has this cost. The status of the response shows the verdict. The header
// fields are those of draft-ietf-httpapi-ratelimit-headers.
func writeTakeWithStatus(ctx huma.Context, verdict policies.Verdict, cost int64) error {
	taken := toAPITaken(verdict, cost)
	if len(verdict.Items) > 0 {
		ctx.SetHeader("RateLimit-Policy", formatRateLimitField(verdict, formatQuota))
		ctx.SetHeader("RateLimit", formatRateLimitField(verdict, func(_ *limits.Rule, s limits.WindowUse) string {
			return ";r=" + formatDecimal(s.Remaining) + ";t=" + formatDecimal(roundUpToUnits(s.Reset, time.Second))
		}))
	}
	if verdict.Allowed {
		return writeResponse(ctx, http.StatusOK, operators.TypeJSON, taken)
	}
	p := newProblem(http.StatusTooManyRequests, codeLimited, "policy "+taken.RefusedBy+" does not allow it now")
	if verdict.Unchecked {
		p = newProblem(http.StatusServiceUnavailable, codeUnavailable, "the take cannot be checked: Redis does not answer; send again")
	}
	ctx.SetHeader("Retry-After", strconv.Itoa(int(max(1, math.Ceil(verdict.Wait.Seconds())))))
	return writeResponse(ctx, p.Status, p.ContentType(""), refusedTake{p.Problem, taken})
}

// formatRateLimitField returns the value of a header field with one item for each policy in verdict. format returns the parameters of an
// item.
func formatRateLimitField(verdict policies.Verdict, format func(*limits.Rule, limits.WindowUse) string) string {
	items := make([]string, len(verdict.Items))
	for i, s := range verdict.Items {
		items[i] = `"` + verdict.Rules[i].Name + `"` + format(verdict.Rules[i], s)
	}
	return strings.Join(items, ", ")
}

// formatQuota returns the quota of rule in the window of use, for a header field. A calendar period has no window length, because its length
// varies.
func formatQuota(rule *limits.Rule, use limits.WindowUse) string {
	text, per := ";q="+formatDecimal(use.Max), rule.PerMS
	if use.Window < len(rule.Windows) {
		per = rule.Windows[use.Window].PerMS
	}
	if per > 0 {
		text += ";w=" + formatDecimal(roundUpToUnits(milliseconds(per), time.Second))
	}
	return text
}

// giveBackTake gives back the unused part of a take.
func (l *limitSetOperations) giveBackTake(ctx huma.Context) error {
	var body takeBody
	if err := readJSONBody(ctx, &body); err != nil {
		return err
	}
	take, err := body.readTake("", operatorName(ctx.Context()))
	if err != nil {
		return err
	}
	if take.ID == "" {
		return invalidProblem("id: required, the id of the take")
	}
	returned, err := l.sets.GiveBack(ctx.Context(), ctx.Param("set"), take)
	if err != nil {
		return takeProblem(err, false)
	}
	return writeResponse(ctx, http.StatusOK, operators.TypeJSON, operators.Returned{Returned: returned})
}

func (l *limitSetOperations) writeUsage(ctx huma.Context) error {
	facts, limit, err := readUsageQuery(ctx)
	if err != nil {
		return err
	}
	var answer operators.Usage
	if len(facts) > 0 {
		used, err := l.sets.Usage(ctx.Context(), ctx.Param("set"), facts)
		if err != nil {
			return err
		}
		answer.Usage = toAPIPolicyUses(used)
	} else {
		highest, err := l.sets.HighestUses(ctx.Context(), ctx.Param("set"), limit)
		if err != nil {
			return err
		}
		if operatorOf(ctx.Context()).Role == roleCaller { // the usage of a set shows facts, which may belong to other callers
			for i, u := range highest {
				highest[i] = u.Redacted()
			}
		}
		answer.Highest = toAPIPolicyUses(highest)
	}
	return writeResponse(ctx, http.StatusOK, operators.TypeJSON, answer)
}

// readUsageQuery reads the facts and the limit from the query of a request for the usage.
func readUsageQuery(ctx huma.Context) (facts map[string]string, limit int, err error) {
	requestURL := ctx.URL()
	facts, limit = map[string]string{}, 20
	for name, values := range requestURL.Query() {
		if fact, is := strings.CutPrefix(name, factsPrefix); is {
			if len(values) > 1 {
				return nil, 0, invalidProblem("query.%s: given %d times, takes one value", name, len(values))
			}
			facts[fact] = values[0]
		}
	}
	if text := ctx.Query("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxHighest {
			return nil, 0, invalidProblem("query.limit: must be between 1 and %d", maxHighest)
		}
	}
	return facts, limit, checkFacts("query.", facts)
}
