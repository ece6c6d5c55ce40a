package api

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxFailureGroups = 50
	maxOfferedKeys   = 100
)

type attemptStore interface {
	recentAttemptsReader
	AttemptsByDevice(ctx context.Context, scope store.TaskScope, since time.Time, handle func(store.DeviceAttempts)) (isSample bool, err error)
}

type failureOperations struct{ ledger attemptStore }

func (f *failureOperations) register(r *routes) {
	ofPool := r.limitListReads(r.describeOperation("getPoolFailures"))
	ofBatch := r.limitListReads(r.describeOperation("getBatchFailures"))
	register(r, ofPool, func(ctx context.Context, in *struct {
		PoolPath
		operators.FailureQuery
	},
	) (operators.Failures, error) {
		return f.countFailures(ctx, store.TaskScope{Pool: in.Pool}, in.FailureQuery)
	})
	register(r, ofBatch, func(ctx context.Context, in *struct {
		IDPath
		operators.FailureQuery
	},
	) (operators.Failures, error) {
		return f.countFailures(ctx, store.TaskScope{Batch: in.ID}, in.FailureQuery)
	})
}

// countFailures counts the attempts of scope (a pool or a batch) in the groups that query asks for.
func (f *failureOperations) countFailures(ctx context.Context, scope store.TaskScope, query operators.FailureQuery) (operators.Failures, error) {
	if err := checkPeriod("since", query.Since, "", time.Time{}); err != nil {
		return operators.Failures{}, err
	}
	for _, key := range query.By {
		if kind, name, _ := strings.Cut(key, "."); kind != "tags" && kind != "attributes" || name == "" || len(key) > maxFieldName {
			return operators.Failures{}, invalidProblem("query.by: %q is not one of tags.NAME, attributes.NAME, of at most %d bytes", truncateText(key), maxFieldName)
		}
	}
	groups := failureGroups{by: query.By, all: map[string]*operators.FailureGroup{}, byKey: map[string]map[string]*operators.FailureCount{}}
	isSample, err := f.ledger.AttemptsByDevice(ctx, scope, query.Since, groups.addDeviceAttempts)
	return groups.buildResponse(isSample), err
}

// failureGroups counts the attempts of devices in groups. The devices of a group have the same value for each key in the field `by`.
type failureGroups struct {
	by    []string
	total operators.FailureCount
	all   map[string]*operators.FailureGroup            // key: the values of the group, joined by zero bytes
	byKey map[string]map[string]*operators.FailureCount // by key and value, to find out by which keys the failures differ. A key with too many values has no entry for some of them
}

func (g *failureGroups) addDeviceAttempts(attempts store.DeviceAttempts) {
	values := tagAndAttributeTexts(attempts)
	group := &operators.FailureGroup{Values: make([]*string, len(g.by))}
	id := ""
	for i, key := range g.by {
		if value, ok := values[key]; ok {
			group.Values[i], id = &value, id+"="+value
		}
		id += "\x00"
	}
	if g.all[id] == nil {
		g.all[id] = group
	}
	for key, value := range values {
		if g.byKey[key] == nil {
			g.byKey[key] = map[string]*operators.FailureCount{}
		}
		if g.byKey[key][value] == nil && len(g.byKey[key]) <= maxFailureGroups {
			g.byKey[key][value] = &operators.FailureCount{}
		}
		if count := g.byKey[key][value]; count != nil {
			addToCount(count, attempts)
		}
	}
	addToCount(&g.all[id].FailureCount, attempts)
	addToCount(&g.total, attempts)
}

func addToCount(count *operators.FailureCount, attempts store.DeviceAttempts) {
	count.Ended += attempts.Ended
	count.Failed += attempts.Failed
	count.Rate = float64(count.Failed) / float64(count.Ended)
}

// tagAndAttributeTexts returns the tags and attributes of the device in attempts as texts. Their keys are tags.NAME and attributes.NAME. It
// omits attributes that are null or lists.
func tagAndAttributeTexts(attempts store.DeviceAttempts) (textByKey map[string]string) {
	values := make(map[string]string, len(attempts.Tags))
	for name, value := range attempts.Tags {
		values["tags."+name] = truncateText(value)
	}
	for _, m := range flattenOutput(attempts.Attributes) {
		switch jsonType(m.value) {
		case "text":
			var text string
			_ = json.Unmarshal(m.value, &text) // stored attributes are valid JSON
			values["attributes."+m.name] = truncateText(text)
		case "number", "boolean":
			values["attributes."+m.name] = string(m.value)
		}
	}
	return values
}

// buildResponse returns the counted groups, most failures first, and the keys by which the attempts can be grouped.
func (g *failureGroups) buildResponse(isSample bool) operators.Failures {
	shown := operators.Failures{FailureCount: g.total, IsSample: isSample, By: append([]string{}, g.by...), Groups: []operators.FailureGroup{}, Keys: []string{}}
	ids := slices.SortedFunc(maps.Keys(g.all), func(a, b string) int {
		x, y := g.all[a], g.all[b]
		return cmp.Or(cmp.Compare(y.Failed, x.Failed), cmp.Compare(y.Ended, x.Ended), cmp.Compare(a, b))
	})
	for i, id := range ids {
		if i < maxFailureGroups {
			shown.Groups = append(shown.Groups, *g.all[id])
			continue
		}
		if shown.Rest == nil {
			shown.Rest = &operators.FailureCount{}
		}
		addToCount(shown.Rest, store.DeviceAttempts{Ended: g.all[id].Ended, Failed: g.all[id].Failed})
	}
	for key, values := range g.byKey {
		if len(values) <= maxFailureGroups {
			shown.Keys = append(shown.Keys, key)
		}
	}
	slices.SortFunc(shown.Keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(g.failureDeviation(b), g.failureDeviation(a)), cmp.Compare(a, b))
	})
	shown.Keys = shown.Keys[:min(len(shown.Keys), maxOfferedKeys)]
	return shown
}

// failureDeviation returns how much the failures depend on the value of the key tagOrAttribute. For each value, it compares the number of
// failures with the number that the total failure rate predicts. The deviation is the sum of the differences.
func (g *failureGroups) failureDeviation(tagOrAttribute string) (deviation float64) {
	for _, count := range g.byKey[tagOrAttribute] {
		deviation += math.Abs(float64(count.Failed) - g.total.Rate*float64(count.Ended))
	}
	return math.Round(deviation)
}
