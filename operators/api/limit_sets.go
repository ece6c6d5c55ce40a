package api

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type limitSetStore interface {
	PutLimitSet(ctx context.Context, actor, name string, policies json.RawMessage, dryRun bool) (set store.LimitSet, created bool, err error)
	LimitSet(ctx context.Context, name string) (store.LimitSet, error)
	LimitSets(ctx context.Context, afterName string, limit int) ([]store.LimitSet, error)
	DeleteLimitSet(ctx context.Context, actor, name string) error
}

// limitSetPut is the body of a PUT of a limit set. It accepts the read-only fields of a GET response and ignores them.
type limitSetPut struct {
	operators.LimitSetSettings
	ReadOnlyFields
}

// LimitSetPath is the path parameter {set}: the name of a limit set.
type LimitSetPath struct {
	Set string `path:"set" maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9._:-]*$" doc:"1-64 of A-Z a-z 0-9 . _ : -, starting with a letter or digit"`
}

type limitSetOperations struct {
	ledger limitSetStore
	sets   *policies.Sets
}

func (l *limitSetOperations) register(r *routes) {
	registerList[operators.LimitSetList](r, r.describeOperation("listLimitSets"), l.list)
	register(r, r.describeOperation("getLimitSet"), l.get)
	registerResponse(r, documentStatus[operators.LimitSet](r, r.describeOperation("putLimitSet"), http.StatusCreated), l.put)
	registerResponse(r, r.describeOperation("deleteLimitSet"), l.delete)
	l.registerTakes(r)
}

func (l *limitSetOperations) list(ctx context.Context, in *Page) (page listPage[operators.LimitSet], err error) {
	found, err := l.ledger.LimitSets(ctx, in.after, in.Size)
	return newPage(found, in.isFull(len(found)), toAPILimitSet, func(s store.LimitSet) string { return s.Name }), err
}

func (l *limitSetOperations) get(ctx context.Context, in *LimitSetPath) (operators.LimitSet, error) {
	found, err := l.ledger.LimitSet(ctx, in.Set)
	return toAPILimitSet(found), err
}

func (l *limitSetOperations) put(ctx context.Context, in *struct {
	LimitSetPath
	PoolMode
	Body limitSetPut
},
) (*createdResponse[operators.LimitSet], error) {
	if err := policy.ValidateSet(in.Body.Limits); err != nil {
		return nil, invalidProblem("%v", err)
	}
	var kept json.RawMessage
	if len(in.Body.Limits) > 0 {
		kept, _ = json.Marshal(in.Body.Limits) // texts and numbers always marshal
	}
	put, isNew, err := l.ledger.PutLimitSet(ctx, operatorName(ctx), in.Set, kept, in.DryRun)
	if err == nil && !in.DryRun {
		l.sets.Forget(in.Set)
	}
	return &createdResponse[operators.LimitSet]{createdStatus(isNew && !in.DryRun), toAPILimitSet(put)}, err
}

func (l *limitSetOperations) delete(ctx context.Context, in *LimitSetPath) (*struct{}, error) {
	err := l.ledger.DeleteLimitSet(ctx, operatorName(ctx), in.Set)
	if err == nil {
		l.sets.ForgetDeleted(in.Set)
	}
	return &struct{}{}, err
}

func toAPILimitSet(set store.LimitSet) operators.LimitSet {
	shown, err := policies.ParseSet(set.Limits)
	if err != nil || shown == nil {
		shown = []policy.Policy{} // a later release wrote the policies, and this release cannot show them completely
	}
	return operators.LimitSet{Name: set.Name, Limits: shown, Version: set.Version, Created: apiTime(set.CreatedAt), Updated: apiTime(set.UpdatedAt)}
}

// registerTakes adds to r the operations take, peek, return and usage, which callers use thousands of times a second.
func (l *limitSetOperations) registerTakes(r *routes) {
	statusParam := &huma.Param{Name: "status", In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Enum: []any{200, 429}, Default: 200}, Description: "429: the status of a single take that is refused is 429 with Retry-After, and 503 if the take cannot be checked and is not allowed; all responses have the headers RateLimit-Policy and RateLimit"}
	take := r.describeOperation("take")
	take.Parameters = []*huma.Param{statusParam}
	peek := r.describeOperation("peek")
	peek.Parameters = take.Parameters
	registerDirect(r, take, []any{operators.Take{}, operators.Takes{}}, []any{operators.Taken{}, operators.TakenList{}}, l.newTakeHandler(l.sets.Take))
	registerDirect(r, peek, []any{operators.Take{}, operators.Takes{}}, []any{operators.Taken{}, operators.TakenList{}}, l.newTakeHandler(l.sets.Peek))
	registerDirect(r, r.describeOperation("returnTake"), []any{operators.Take{}}, []any{operators.Returned{}}, l.giveBackTake)
	usage := r.describeOperation("getUsage")
	usage.Description = "facts.NAME=VALUE, one parameter per fact, selects the subject with these facts. Without facts, the subjects that used most are listed."
	usage.Parameters = []*huma.Param{{Name: "limit", In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: new(1.0), Maximum: new(100.0), Default: 20}, Description: "Maximum number of subjects"}}
	registerDirect(r, usage, nil, []any{operators.Usage{}}, l.writeUsage)
}
