package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// limitSetBody returns a limit set that allows 3 takes a minute (and 50 a day) for each phone, and 5 a day for each
// user and country.
func limitSetBody() string {
	return `{"limits":[
	{"name":"per-phone","per":"facts.phone","algorithm":"sliding","windows":[{"max":3,"per_ms":60000},{"max":50,"per_ms":86400000}]},
	{"name":"daily","per":"facts.user,facts.country","algorithm":"calendar","period":"day","timezone":"` + servers.NoonZone() + `","max":5}]}`
}

func (b *testAPI) putLimitSet(name, settings string) {
	b.Helper()
	b.Call("PUT", "/v1/limits/"+name, adminToken, settings).Expect(201)
}

// takeResponse is the response to a take (a request to a limit set).
type takeResponse struct {
	Allowed   bool
	Cost      int64
	Limits    []windowUsage
	RefusedBy string     `json:"refused_by"`
	RetryMS   int64      `json:"retry_after_ms"`
	Since     *time.Time `json:"counted_since"`
	Repeated  bool
	Unchecked bool
}

type windowUsage struct {
	Policy         string
	Window         int
	Max, Remaining int64
	ResetMS        int64 `json:"reset_ms"`
}

func (b *testAPI) sendTake(set, body string) (t takeResponse) {
	b.Helper()
	b.Call("POST", "/v1/limits/"+set+"/take", adminToken, body).Expect(200).Decode(&t)
	return t
}

func (b *testAPI) peekRemaining(facts string) (left []int64) {
	b.Helper()
	var t takeResponse
	b.Call("POST", "/v1/limits/sms/peek", adminToken, `{"facts":`+facts+`}`).Expect(200).Decode(&t)
	for _, l := range t.Limits {
		left = append(left, l.Remaining)
	}
	return left
}

func TestTakesAreCountedByEachPolicy(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putLimitSet("sms", limitSetBody())
		ann := `"facts":{"phone":"+49 1","user":"ann"}`
		first := b.sendTake("sms", `{`+ann+`}`)
		if !first.Allowed || first.Cost != 1 || first.RefusedBy != "" || first.RetryMS != 0 || first.Unchecked || len(first.Limits) != 2 {
			b.Fatalf("the first: %+v", first)
		}
		if got := first.Limits[0]; got != (windowUsage{"per-phone", 0, 3, 2, got.ResetMS}) || got.ResetMS < 59_000 || got.ResetMS > 60_000 {
			b.Errorf("of the phone: %+v", got)
		}
		if first.Since == nil || time.Since(*first.Since).Abs() > time.Minute {
			b.Errorf("a set that is new counts since %v", first.Since)
		}
		if two := b.sendTake("sms", `{"cost":2,`+ann+`}`); !two.Allowed || two.Limits[0].Remaining != 0 || two.Limits[1].Remaining != 2 {
			b.Errorf("two more: %+v", two)
		}
		full := b.sendTake("sms", `{`+ann+`}`)
		if full.Allowed || full.RefusedBy != "per-phone" || full.RetryMS < 50_000 || full.RetryMS > 60_000 || full.Limits[1].Remaining != 2 {
			b.Errorf("a fourth: %+v", full)
		}
		if other := b.sendTake("sms", `{"facts":{"phone":"+49 2","user":"ann"},"cost":2}`); !other.Allowed || other.Limits[0].Remaining != 1 || other.Limits[1].Remaining != 0 {
			b.Errorf("of another phone: %+v", other)
		}
		if daily := b.sendTake("sms", `{"facts":{"phone":"+49 3","user":"ann"}}`); daily.Allowed || daily.RefusedBy != "daily" || daily.RetryMS > 86_400_000 {
			b.Errorf("of a third phone: %+v", daily)
		}
		if got := fmt.Sprint(b.peekRemaining(`{"phone":"+49 3","user":"bob"}`)); got != "[3 5]" {
			b.Errorf("peeked at what nobody used: %s", got)
		}
		for _, e := range listField(b.Get("/v1/events").Expect(200).Object(), "events") {
			if kind := asObject(e)["kind"]; kind != "limit_set.created" {
				b.Errorf("a take left an event: %v", e)
			}
		}
	})
}

// A take with an id is sent several times, also concurrently: it counts once. The same id with other facts is
// another take.
func TestATakeSentAgainIsCountedOnce(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putLimitSet("sms", limitSetBody())
		const body = `{"id":"m-1","facts":{"phone":"a","user":7}}`
		var all sync.WaitGroup
		var mu sync.Mutex
		repeated := 0
		for range 6 {
			all.Go(func() {
				got := b.sendTake("sms", body)
				mu.Lock()
				defer mu.Unlock()
				if !got.Allowed {
					b.Errorf("sent again: %+v", got)
				}
				if got.Repeated {
					repeated++
				}
			})
		}
		all.Wait()
		if left := fmt.Sprint(b.peekRemaining(`{"phone":"a","user":"7"}`)); repeated != 5 || left != "[2 4]" {
			b.Errorf("%d repeated, %s left", repeated, left)
		}
		if got := b.sendTake("sms", `{"id":"m-1","facts":{"phone":"b","user":7}}`); got.Repeated {
			b.Errorf("of other facts: %+v", got)
		}
	})
}

// A take with an id is sent again with another cost. It is refused: if an id could have two costs, alternating
// requests would be counted each time.
func TestAnIDHasOneCost(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putLimitSet("sms", limitSetBody())
		const one, two = `{"id":"m-1","facts":{"phone":"a"}}`, `{"id":"m-1","facts":{"phone":"a"},"cost":2}`
		b.sendTake("sms", one)
		for _, verb := range []string{"take", "peek", "take?status=429"} {
			b.Call("POST", "/v1/limits/sms/"+verb, adminToken, two).ExpectProblem(422, "invalid_field", "cost:")
		}
		b.Call("POST", "/v1/limits/sms/take", adminToken, `{"takes":[`+one+`,`+two+`]}`).ExpectProblem(422, "invalid_field", "takes[1].cost:")
		if got := b.sendTake("sms", one); !got.Repeated || got.Limits[0].Remaining != 2 {
			b.Errorf("sent again: %+v", got)
		}
		b.Call("POST", "/v1/limits/sms/return", adminToken, one).Expect(200)
		if got := b.sendTake("sms", two); !got.Allowed || got.Repeated || got.Limits[0].Remaining != 1 {
			b.Errorf("another cost of what was given back whole: %+v", got)
		}
	})
}

// Two callers use the same ids for their takes. The takes are separate, and a caller can give back only its own.
func TestIDsAreEachCallersOwn(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	const body = `{"id":"1","facts":{"phone":"a"}}`
	gateways := []string{b.createCallerToken(`"limit_sets":["sms"]`), b.createCallerToken(`"limit_sets":["sms"]`)}
	for i, token := range gateways {
		var got takeResponse
		b.Call("POST", "/v1/limits/sms/take", token, body).Expect(200).Decode(&got)
		if got.Repeated || got.Limits[0].Remaining != int64(2-i) {
			t.Errorf("caller %d: %+v", i, got)
		}
	}
	var got struct{ Returned int64 }
	if b.Call("POST", "/v1/limits/sms/return", adminToken, body).Expect(200).Decode(&got); got.Returned != 0 {
		t.Errorf("%d given back of a take of another caller", got.Returned)
	}
	b.Call("POST", "/v1/limits/sms/return", gateways[0], body).Expect(200)
	if left := fmt.Sprint(b.peekRemaining(`{"phone":"a"}`)); left != "[2 4]" {
		t.Errorf("%s left", left)
	}
}

func TestManyTakesStandAlone(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	one := `{"facts":{"phone":"a"}}`
	var answer struct{ Takes []takeResponse }
	b.Call("POST", "/v1/limits/sms/take", adminToken, `{"takes":[`+strings.Repeat(one+",", 4)+`{"facts":{"phone":"b"},"cost":1}]}`).Expect(200).Decode(&answer)
	var allowed []bool
	for _, t := range answer.Takes {
		allowed = append(allowed, t.Allowed)
	}
	if !slices.Equal(allowed, []bool{true, true, true, false, true}) {
		t.Errorf("%v", allowed)
	}
}

func TestWhatWasNotUsedIsGivenBack(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	b.sendTake("sms", `{"id":"m-1","facts":{"phone":"a"},"cost":3}`)
	for _, test := range []struct {
		body string
		want int64
	}{
		{`{"id":"m-1","facts":{"phone":"a"},"cost":2}`, 2},
		{`{"id":"m-1","facts":{"phone":"a"},"cost":2}`, 2}, // the same request again
		{`{"id":"m-1","facts":{"phone":"b"},"cost":1}`, 0},
		{`{"id":"m-2","facts":{"phone":"a"},"cost":1}`, 0},
	} {
		var got struct{ Returned int64 }
		if b.Call("POST", "/v1/limits/sms/return", adminToken, test.body).Expect(200).Decode(&got); got.Returned != test.want {
			t.Errorf("%s: %d, want %d", test.body, got.Returned, test.want)
		}
	}
	if left := fmt.Sprint(b.peekRemaining(`{"phone":"a"}`)); left != "[2 4]" {
		t.Errorf("%s left", left)
	}
	b.Call("POST", "/v1/limits/sms/return", adminToken, `{"facts":{"phone":"a"}}`).ExpectProblem(422, "invalid_field", "id:")
}

// A take has the parameter status=429. The response then uses the means of HTTP: the status 429, Retry-After and
// the RateLimit fields.
func TestTheStatusSaysWhatIsRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	const path, body = "/v1/limits/sms/take?status=429", `{"facts":{"phone":"a"}}`
	a := b.Call("POST", path, adminToken, strings.Replace(body, "}}", `},"cost":3}`, 1)).Expect(200)
	if got, want := a.Header.Get("RateLimit-Policy"), `"per-phone";q=3;w=60, "daily";q=5`; got != want {
		t.Errorf("RateLimit-Policy: %s, want %s", got, want)
	}
	if got := a.Header.Get("RateLimit"); !strings.HasPrefix(got, `"per-phone";r=0;t=60, "daily";r=2;t=`) {
		t.Errorf("RateLimit: %s", got)
	}
	a = b.Call("POST", path, adminToken, body)
	a.ExpectProblem(429, "limited", "per-phone")
	var got takeResponse
	if a.Decode(&got); got.Allowed || got.RefusedBy != "per-phone" || a.Header.Get("Retry-After") != "60" || !strings.Contains(a.Header.Get("RateLimit"), `"per-phone";r=0;t=60`) {
		t.Errorf("refused: %+v, %v", got, a.Header)
	}
	b.Call("POST", path, adminToken, `{"takes":[{}]}`).ExpectProblem(422, "invalid_field", "query.status")
	b.Call("POST", "/v1/limits/sms/take?status=500", adminToken, body).ExpectProblem(422, "invalid_field", "query.status")
}

func TestBadTakesNameTheirField(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	many := strings.TrimSuffix(strings.Repeat(`{},`, 101), ",")
	var facts []string
	for i := range 33 {
		facts = append(facts, fmt.Sprintf(`"f%d":1`, i))
	}
	for body, want := range map[string]struct {
		status int
		code   string
		names  string
	}{
		`{`:                        {400, "invalid_request", "body"},
		``:                         {400, "invalid_request", "body"},
		`[]`:                       {400, "invalid_request", "body"},
		`{} {}`:                    {400, "invalid_request", "more than one"},
		`{"facts":{"a":1,"a":2}}`:  {400, "invalid_request", "facts.a"},
		`{"facts":{"a":"\u0000"}}`: {400, "invalid_request", "U+0000"},
		`{"fact":{}}`:              {400, "unknown_field", "fact"},
		`{"Facts":{}}`:             {400, "unknown_field", "Facts"},
		`{"cost":"1"}`:             {422, "invalid_field", "cost"},
		`{"id":5}`:                 {422, "invalid_field", "id"},
		`{"cost":0}`:               {422, "invalid_field", "cost: must be between 1 and 1000"},
		`{"cost":1001}`:            {422, "invalid_field", "cost: must be between 1 and 1000"},
		`{"cost":4}`:               {422, "invalid_field", "cost: policy per-phone allows a cost of at most 3"},
		`{"facts":{"a":{}}}`:       {422, "invalid_field", "facts.a"},
		`{"facts":{"a":null}}`:     {422, "invalid_field", "facts.a"},
		`{"facts":{"":1}}`:         {422, "invalid_field", "facts: a name"},
		`{"facts":{` + strings.Join(facts, ",") + `}}`:        {422, "invalid_field", "facts: at most 32"},
		`{"facts":{"a":"` + strings.Repeat("x", 1025) + `"}}`: {422, "invalid_field", "facts.a: at most 1024"},
		`{"id":"` + strings.Repeat("x", 129) + `"}`:           {422, "invalid_field", "id: at most 128"},
		`{"takes":[]}`:                   {422, "invalid_field", "takes: must have between 1 and 100"},
		`{"takes":[` + many + `]}`:       {422, "invalid_field", "takes: must have between 1 and 100"},
		`{"takes":[{}],"cost":1}`:        {422, "invalid_field", "takes: not together"},
		`{"takes":[{},{"cost":4}]}`:      {422, "invalid_field", "takes[1].cost"},
		`{"takes":[{"facts":{"a":[]}}]}`: {422, "invalid_field", "takes[0].facts.a"},
	} {
		b.Call("POST", "/v1/limits/sms/take", adminToken, body).ExpectProblem(want.status, want.code, want.names)
	}
	b.sendWithType("POST", "/v1/limits/sms/take", "text/plain", `{}`).ExpectProblem(415, "unsupported_media_type")
	b.Call("POST", "/v1/limits/none/take", adminToken, `{}`).ExpectProblem(404, "not_found")
	b.Call("POST", "/v1/limits/sms/take", adminToken, `{"id":"`+strings.Repeat("x", 1<<20)+`"}`).ExpectProblem(413, "body_too_large")
	for query, names := range map[string]string{"limit=0": "query.limit", "limit=x": "query.limit", "limit=101": "query.limit", "facts.a=1&facts.a=2": "query.facts.a", "facts.=1": "facts: a name"} {
		b.Get("/v1/limits/sms/usage?"+query).ExpectProblem(422, "invalid_field", names)
	}
	if left := fmt.Sprint(b.peekRemaining(`{}`)); left != "[3 5]" {
		t.Errorf("something was counted: %s", left)
	}
}

// A caller can take only from the limit sets that its token covers. It cannot find out which other sets exist.
func TestCallersTakeFromTheirSets(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms-eu", limitSetBody())
	b.putLimitSet("calls", limitSetBody())
	caller := b.createCallerToken(`"limit_sets":["sms-*"],"pools":["calls"]`)
	b.Call("POST", "/v1/limits/sms-eu/take", caller, `{}`).Expect(200)
	b.Call("GET", "/v1/limits/sms-eu/usage", caller, nil).Expect(200)
	b.Call("POST", "/v1/limits/sms-none/take", caller, `{}`).ExpectProblem(404, "not_found")
	for _, set := range []string{"calls", "none"} {
		for _, call := range []string{"POST take", "POST peek", "POST return", "GET usage"} {
			method, verb, _ := strings.Cut(call, " ")
			b.Call(method, "/v1/limits/"+set+"/"+verb, caller, nil).ExpectProblem(403, "forbidden", "does not cover")
		}
	}
	for _, path := range []string{"/v1/limits", "/v1/limits/sms-eu", "/v1/pools", "/v1/events"} {
		b.Call("GET", path, caller, nil).ExpectProblem(403, "forbidden")
	}
	viewer := b.createToken("viewer")
	b.Call("GET", "/v1/limits/calls/usage", viewer, nil).Expect(200)
	b.Call("POST", "/v1/limits/calls/take", viewer, `{}`).ExpectProblem(403, "forbidden")
}

func TestUsageIsThatOfTheSubject(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", limitSetBody())
	for phone, cost := range map[string]int{"a": 3, "b": 1} {
		b.sendTake("sms", fmt.Sprintf(`{"facts":{"phone":%q,"user":"ann"},"cost":%d}`, phone, cost))
	}
	type use struct {
		Policy, Subject      string
		Used, Max, Remaining int64
	}
	var shown struct{ Usage, Highest []use }
	b.Get("/v1/limits/sms/usage?facts.phone=a&facts.user=ann").Expect(200).Decode(&shown)
	if len(shown.Usage) != 2 || shown.Usage[0] != (use{"per-phone", shown.Usage[0].Subject, 3, 3, 0}) || shown.Usage[1].Used != 4 || shown.Highest != nil {
		t.Errorf("%+v", shown)
	}
	shown.Usage = nil
	b.Get("/v1/limits/sms/usage?limit=2").Expect(200).Decode(&shown)
	if len(shown.Highest) != 2 || shown.Highest[0].Used != 3 || shown.Highest[1].Used != 4 || shown.Usage != nil {
		t.Errorf("highest: %+v", shown)
	}
}

// TestASetRevealsFactsWhereItSaysSo checks a limit set whose policy allows it to reveal facts: the facts are shown.
// A policy of a limit set cannot have the action drop, because nothing waits there.
func TestASetRevealsFactsWhereItSaysSo(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	const policies = `{"limits":[{"name":"open","per":"facts.phone","algorithm":"fixed","per_ms":60000,"max":3,"reveal":true},
		{"name":"closed","per":"facts.phone","algorithm":"fixed","per_ms":60000,"max":4}]}`
	b.putLimitSet("sms", policies)
	b.sendTake("sms", `{"facts":{"phone":"+49 <1>"}}`)
	for _, query := range []string{"", "?facts.phone=%2B49%20%3C1%3E"} {
		var shown operators.Usage
		b.Get("/v1/limits/sms/usage" + query).Expect(200).Decode(&shown)
		uses := append(shown.Highest, shown.Usage...)
		if len(uses) != 2 || uses[0].Subject != "facts.phone=+49 <1>" || !strings.HasPrefix(uses[1].Subject, "facts.phone#") {
			t.Errorf("%q: %+v", query, uses)
		}
		for _, use := range uses {
			if use.Owner != "limit set sms" || use.Allows != fmt.Sprintf("%d per 1m0s", use.Max) {
				t.Errorf("%+v", use)
			}
		}
	}
	for _, said := range []string{"wait", "drop"} {
		body := strings.Replace(policies, `"reveal":true`, `"on_limited":"`+said+`"`, 1)
		b.Call("PUT", "/v1/limits/sms", adminToken, body).ExpectProblem(422, "invalid_field", "limits[0].on_limited: not allowed in a limit set")
	}
}

// A policy of a limit set may reveal the facts of all callers. A caller still sees only digests of the facts of
// other callers.
func TestFactsAreNotRevealedToOtherCallers(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putLimitSet("sms", strings.ReplaceAll(limitSetBody(), `"name":`, `"reveal":true,"name":`))
	b.sendTake("sms", `{"facts":{"phone":"+49 1","user":"ann"}}`)
	caller := b.createCallerToken(`"limit_sets":["sms"]`)
	const highest, own = "/v1/limits/sms/usage", "/v1/limits/sms/usage?facts.phone=%2B49%201&facts.user=ann"
	for _, test := range []struct{ token, path, want, not string }{
		{b.createToken("viewer"), highest, "facts.phone=+49 1", "#"},
		{caller, highest, `"facts.phone#`, "+49"},
		{caller, highest, `"facts.user facts.country#`, "ann"},
		{caller, own, "facts.phone=+49 1", "#"}, // the caller knows these facts
	} {
		text := string(b.Call("GET", test.path, test.token, nil).Expect(200).Body)
		if !strings.Contains(text, test.want) || strings.Contains(text, test.not) {
			t.Errorf("%s, want %s in it and no %s: %s", test.path, test.want, test.not, text)
		}
	}
}

// A limit set needs no preparation. After Redis has lost its data, it begins empty, and its responses say so until
// its windows are complete again.
func TestASetBeginsEmptyAfterALossOfRedis(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putLimitSet("sms", limitSetBody())
		b.putLimitSet("short", `{"limits":[{"name":"n","per":"facts.a","algorithm":"sliding","windows":[{"max":9,"per_ms":50}]}]}`)
		for begun := time.Now(); b.sendTake("short", `{}`).Since != nil; {
			if time.Since(begun) > patience {
				b.Fatal("the window is never whole")
			}
		}
		const body = `{"id":"1","facts":{"phone":"a"},"cost":3}`
		before := b.sendTake("sms", body)
		b.Must(b.Redis.FlushDB(b.Context()).Err())
		after := b.sendTake("sms", body)
		if !after.Allowed || after.Repeated || after.Limits[0].Remaining != 0 || before.Since == nil || after.Since == nil || after.Since.Before(*before.Since) {
			b.Errorf("before %+v, after %+v", before, after)
		}
		if since := b.sendTake("short", `{}`).Since; since == nil {
			b.Error("a set whose counts were lost says that its window is whole")
		}
	})
}

// Redis is not reachable. The setting on_error of the policies decides whether a take is allowed, and the metrics
// count this take.
func TestTakesWithoutRedis(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	policy := func(name, onError string) string {
		return fmt.Sprintf(`{"name":%q,"per":"facts.a","algorithm":"fixed","max":5,"per_ms":1000,"on_error":%q}`, name, onError)
	}
	b.putLimitSet("open", `{"limits":[`+policy("one", "open")+`,`+policy("two", "open")+`]}`)
	b.putLimitSet("closed", `{"limits":[`+policy("one", "open")+`,`+policy("two", "closed")+`]}`)
	b.Must(b.Redis.Close())
	if got := b.sendTake("open", `{"facts":{"a":1}}`); !got.Allowed || !got.Unchecked || got.RetryMS != 0 || len(got.Limits) != 0 {
		t.Errorf("open: %+v", got)
	}
	if got := b.sendTake("closed", `{"facts":{"a":1}}`); got.Allowed || !got.Unchecked || got.RetryMS <= 0 || got.RefusedBy != "" {
		t.Errorf("closed: %+v", got)
	}
	a := b.Call("POST", "/v1/limits/closed/take?status=429", adminToken, `{}`)
	a.ExpectProblem(503, "unavailable")
	if a.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	b.Call("POST", "/v1/limits/open/return", adminToken, `{"id":"x"}`).ExpectProblem(503, "unavailable", "Redis")
	b.Get("/v1/limits/open/usage").ExpectProblem(503, "unavailable", "Redis")
	text := string(b.Call("GET", "/metrics", "", nil).Expect(200).Body)
	for _, want := range []string{
		`{kind="",outcome="unchecked_allowed",policy="",set="open"} 1`, `{kind="",outcome="unchecked_refused",policy="",set="closed"} 2`,
		`{kind="",outcome="allowed",policy="",set="open"} 0`,
	} {
		if !strings.Contains(text, "dispatcher_limit_takes_total"+want+"\n") {
			t.Errorf("not counted: %s", want)
		}
	}
}

// The metric of refused takes counts a take by the policy in refused_by, and by the kind of this policy.
func TestRefusedTakesAreCountedByPolicyAndKind(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putLimitSet("sms", `{"limits":[
			{"name":"same","algorithm":"duplicate","max":1,"per_ms":3600000},
			{"name":"hourly","per":"facts.phone","algorithm":"sliding","windows":[{"max":3,"per_ms":86400000}]},
			{"name":"burst","per":"facts.phone,facts.app","algorithm":"fixed","max":1,"per_ms":7200000},
			{"name":"monthly","per":"facts.country","algorithm":"calendar","period":"month","max":4,"timezone":"Asia/Shanghai"}]}`)
		for i, c := range []struct{ facts, by string }{
			{`{"phone":"1","app":"a"}`, ""},
			{`{"phone":"1","app":"a","n":"2"}`, "burst"},
			{`{"phone":"1","app":"b"}`, ""},
			{`{"phone":"1","app":"c"}`, ""},
			{`{"phone":"1","app":"d"}`, "hourly"},
			{`{"phone":"2"}`, ""},
			{`{"phone":"3"}`, "monthly"},
			{`{"phone":"3","n":"2"}`, "monthly"},
		} {
			if got := b.sendTake("sms", `{"facts":`+c.facts+`}`); got.RefusedBy != c.by || got.Allowed != (c.by == "") {
				b.Fatalf("take %d: %+v, want refused by %q", i, got, c.by)
			}
		}
		b.putLimitSet("mail", `{"limits":[{"name":"same","algorithm":"duplicate","max":1,"per_ms":3600000}]}`)
		for range 3 {
			b.sendTake("mail", `{"facts":{"to":"ann"}}`)
		}
		text := string(b.Call("GET", "/metrics", "", nil).Expect(200).Body)
		for _, want := range []string{
			`{kind="",outcome="allowed",policy="",set="sms"} 4`, `{kind="duplicate",outcome="refused",policy="same",set="sms"} 0`,
			`{kind="window",outcome="refused",policy="burst",set="sms"} 1`, `{kind="window",outcome="refused",policy="hourly",set="sms"} 1`,
			`{kind="quota",outcome="refused",policy="monthly",set="sms"} 2`, `{kind="duplicate",outcome="refused",policy="same",set="mail"} 2`,
		} {
			if !strings.Contains(text, "dispatcher_limit_takes_total"+want+"\n") {
				b.Errorf("not counted: %s", want)
			}
		}
		b.Call("DELETE", "/v1/limits/sms", adminToken, nil).Expect(204)
		if text = string(b.Call("GET", "/metrics", "", nil).Expect(200).Body); strings.Contains(text, `set="sms"`) {
			b.Error("the metric has a set that was deleted")
		}
	})
}

// A replica has cached a limit set. After its next call of ForgetChanged, it uses the new policies of the set, or
// knows that the set was deleted.
func TestReplicasFollowLimitSets(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.putLimitSet("sms", limitSetBody())
		other := rig.Start(b.T, b.Stores)
		at := func(status int) (got takeResponse) {
			b.Helper()
			a := other.Call("POST", "/v1/limits/sms/peek", adminToken, `{}`).Expect(status)
			if status == http.StatusOK {
				a.Decode(&got)
			}
			return got
		}
		if got := at(200); got.Limits[0].Max != 3 {
			b.Fatalf("%+v", got)
		}
		b.Call("PUT", "/v1/limits/sms", adminToken, strings.Replace(limitSetBody(), `"max":3`, `"max":4`, 1)).Expect(200)
		if got := b.peekRemaining(`{}`); got[0] != 4 {
			b.Errorf("the replica that changed it: %v", got)
		}
		b.Must(other.Dispatcher.Policies.Sets.ForgetChanged(b.Context()))
		if got := at(200); got.Limits[0].Max != 4 {
			b.Errorf("the other one: %+v", got)
		}
		b.Call("DELETE", "/v1/limits/sms", adminToken, nil).Expect(204)
		b.Must(other.Dispatcher.Policies.Sets.ForgetChanged(b.Context()))
		at(404)
	})
}
