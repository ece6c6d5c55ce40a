package operators

import (
	"context"
	"net/url"
	"slices"
	"strconv"
)

// LimitSet is a named set of policies that callers ask directly, without a slot.
type LimitSet struct {
	Name    string   `json:"name" readOnly:"true"`
	Limits  []Policy `json:"limits" doc:"How often an operation is allowed; per is facts.NAME"`
	Version int64    `json:"version" readOnly:"true" doc:"Increases with every change"`
	Created Time     `json:"created_at" readOnly:"true"`
	Updated Time     `json:"updated_at" readOnly:"true"`
}

// LimitSetSettings has all settings of a limit set that an operator can set.
type LimitSetSettings struct {
	Limits []Policy `json:"limits,omitempty" nullable:"true" doc:"The complete list, at most 16; empty: everything is allowed" flag:"policies that limit how often tasks may start: a JSON list, or @FILE with one"`
}

// LimitSetList is a page of limit sets.
type LimitSetList struct {
	Limits        []LimitSet `json:"limits"`
	NextPageToken string     `json:"next_page_token,omitempty"`
}

// Take is one request to a limit set. It asks whether something is allowed, and is counted if it is allowed.
type Take struct {
	ID    string            `json:"id,omitempty" maxLength:"128" doc:"Chosen by the caller. A take that is repeated within 10 minutes with the same id, facts and cost is counted once. Required to give cost back"`
	Facts map[string]string `json:"facts,omitempty" doc:"The facts by which the policies count, at most 32; names of 1 to 64 bytes, values of at most 1 KiB. Numbers, true and false are converted to text"`
	Cost  int64             `json:"cost,omitempty" minimum:"1" maximum:"1000" default:"1" doc:"How much of each maximum the take uses"`
}

// Takes has several takes, which are decided independently.
type Takes struct {
	Takes []Take `json:"takes" minItems:"1" maxItems:"100"`
}

// Taken is the response of a limit set to a Take.
type Taken struct {
	Allowed      bool            `json:"allowed" doc:"false: refused, and nothing was counted"`
	Cost         int64           `json:"cost"`
	Limits       []LimitStanding `json:"limits" doc:"One entry for each policy, in their order; empty if unchecked"`
	RefusedBy    string          `json:"refused_by" doc:"The refusing policy that will allow this cost last; empty: all policies allow it"`
	RetryAfterMS int64           `json:"retry_after_ms" doc:"Time until this cost is allowed; 0: it is allowed now"`
	CountedSince *Time           `json:"counted_since" nullable:"true" doc:"Start of the counting, if it is later than the start of the longest window: the policies are new, or Redis lost its data; null: all windows are counted completely"`
	Repeated     bool            `json:"repeated" doc:"true: this id was already counted"`
	Unchecked    bool            `json:"unchecked" doc:"true: Redis did not answer; allowed follows on_error of the policies"`
}

// LimitStanding is the usage of one policy by the subject of a take. If the policy is sliding, LimitStanding describes the window with the
// smallest Remaining.
type LimitStanding struct {
	Policy    string `json:"policy"`
	Window    int    `json:"window" doc:"Index of the window of a sliding policy, from 0"`
	Max       int64  `json:"max"`
	Remaining int64  `json:"remaining" doc:"Cost that the policy still allows now"`
	ResetMS   int64  `json:"reset_ms" doc:"Time until part of the usage ends; with fixed and calendar, all of it. 0: nothing is used"`
}

// TakenList has the responses to Takes, in the same order.
type TakenList struct {
	Takes []Taken `json:"takes"`
}

// Returned says how much of the cost of one take was given back so far.
type Returned struct {
	Returned int64 `json:"returned" doc:"Cost given back in total; a repeated request gives back nothing more. 0: the id is no longer known, or belongs to other facts"`
}

// LimitSets has the calls about limit sets.
type LimitSets struct {
	client *Client

	List   List[All, LimitSet]                          `op:"GET /v1/limits" id:"listLimitSets" role:"viewer" doc:"List limit sets by name"`
	Get    Call[string, LimitSet]                       `op:"GET /v1/limits/{set}" id:"getLimitSet" role:"viewer" doc:"Read a limit set"`
	Put    CallWith[string, LimitSetSettings, LimitSet] `op:"PUT /v1/limits/{set}" id:"putLimitSet" role:"admin" doc:"Create a limit set or replace its policies"`
	Delete Remove[string]                               `op:"DELETE /v1/limits/{set}" id:"deleteLimitSet" role:"admin" status:"204" doc:"Delete a limit set"`

	_ struct{} `op:"POST /v1/limits/{set}/take" id:"take" role:"operator" callers:"true" log:"none" doc:"Check a take against a limit set, and count it if it is allowed"`
	_ struct{} `op:"POST /v1/limits/{set}/peek" id:"peek" role:"operator" callers:"true" log:"none" doc:"Return what take would return, and count nothing"`
	_ struct{} `op:"POST /v1/limits/{set}/return" id:"returnTake" role:"operator" callers:"true" log:"none" doc:"Give back the unused cost of a take"`
	_ struct{} `op:"GET /v1/limits/{set}/usage" id:"getUsage" role:"viewer" callers:"true" doc:"Read the usage of one subject, or of the subjects that used most"`
}

// Take sends a take to a limit set. The take is counted if it is allowed. If the take has an ID and its response is lost, the request is
// sent again. The take is counted once.
func (c LimitSets) Take(ctx context.Context, limitSet string, take Take) (Taken, error) {
	return callJSON[Taken](ctx, c.client, c.newTakeRequest(ctx, "take", limitSet, take, take.ID != ""))
}

// TakeEach sends at most 100 takes, which are decided independently. It returns one response for each take, in the same order. If all takes
// have an ID and the response is lost, the request is sent again. Each take is counted once.
func (c LimitSets) TakeEach(ctx context.Context, limitSet string, takes []Take) ([]Taken, error) {
	hasNoID := func(t Take) bool { return t.ID == "" }
	answer, err := callJSON[TakenList](ctx, c.client, c.newTakeRequest(ctx, "take", limitSet, Takes{takes}, !slices.ContainsFunc(takes, hasNoID)))
	return answer.Takes, err
}

// Peek returns the response that Take would return for the same take, but does not count the take.
func (c LimitSets) Peek(ctx context.Context, limitSet string, take Take) (Taken, error) {
	return callJSON[Taken](ctx, c.client, c.newTakeRequest(ctx, "peek", limitSet, take, true))
}

// Return gives back the cost take.Cost of the earlier take with the same ID and facts. It returns how much of the cost of the earlier take
// was given back so far, in total.
func (c LimitSets) Return(ctx context.Context, limitSet string, take Take) (givenBack int64, err error) {
	answer, err := callJSON[Returned](ctx, c.client, c.newTakeRequest(ctx, "returnTake", limitSet, take, true))
	return answer.Returned, err
}

// newTakeRequest returns the request of operationID (take, peek or returnTake) for limitSet. isIdempotent becomes Request.Idempotent.
func (c LimitSets) newTakeRequest(ctx context.Context, operationID, limitSet string, body any, isIdempotent bool) Request {
	request := c.client.prepareRequest(ctx, operationID, limitSet, body)
	request.Idempotent = isIdempotent
	return request
}

// HighestUse returns at most limit (1 to 100) usages of the policies of limitSet: those with the largest share of their maximum.
func (c LimitSets) HighestUse(ctx context.Context, limitSet string, limit int) ([]PolicyUse, error) {
	usage, err := callJSON[Usage](ctx, c.client, c.client.prepareRequest(ctx, "getUsage", limitSet, Query("limit", strconv.Itoa(limit))))
	return usage.Highest, err
}

// SubjectUse returns, for each policy of a limit set, how much the subject with these facts has used.
func (c LimitSets) SubjectUse(ctx context.Context, limitSet string, facts map[string]string) ([]PolicyUse, error) {
	query := url.Values{}
	for name, value := range facts {
		query.Set("facts."+name, value)
	}
	usage, err := callJSON[Usage](ctx, c.client, c.client.prepareRequest(ctx, "getUsage", limitSet, query))
	return usage.Usage, err
}
