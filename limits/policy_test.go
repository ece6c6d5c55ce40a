package limits_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
)

const examplePolicies = `[
	{"name": "per-account", "per": "tags.account", "algorithm": "sliding",
	 "windows": [{"max": 1, "per_ms": 60000}, {"max": 5, "per_ms": 3600000}, {"max": 10, "per_ms": 86400000}]},
	{"name": "daily", "algorithm": "calendar", "period": "day", "timezone": "Asia/Shanghai", "max": 1000, "per": "tags.account"},
	{"name": "same-content", "algorithm": "duplicate", "per_ms": 60000, "max": 2},
	{"name": "starts", "per": "pool", "algorithm": "sliding", "windows": [{"max": 30, "per_ms": 60000}]},
	{"name": "firmware", "per": "attributes.firmware", "algorithm": "fixed", "per_ms": 1000, "max": 5, "on_error": "open", "trust_device": true}
]`

// TestPoliciesAreRead checks that Parse reads policies in the form in which operators write them. It must also accept an empty text.
func TestPoliciesAreRead(t *testing.T) {
	t.Parallel()
	policies, err := policy.Parse([]byte(examplePolicies))
	if err != nil || len(policies) != 5 {
		t.Fatalf("the example: %d, %v", len(policies), err)
	}
	if rules, err := limits.Compile("p", policies); err != nil || len(rules) != 5 || !rules[4].FailsOpen() || rules[0].FailsOpen() {
		t.Errorf("compiled: %v, %v", rules, err)
	}
	for _, none := range []string{"", " ", "null", "[]"} {
		if policies, err := policy.Parse([]byte(none)); err != nil || len(policies) != 0 {
			t.Errorf("%q: %v, %v", none, policies, err)
		}
	}
}

// TestMistakesNameTheirField checks policies with a mistake. The error must name the field and its allowed values.
func TestMistakesNameTheirField(t *testing.T) {
	t.Parallel()
	good := `{"name": "n", "per": "device", "algorithm": "fixed", "per_ms": 1000, "max": 1}`
	for text, want := range map[string]string{
		`{}`:                          "limits: ",
		`[{"name": "n"}] []`:          "more than one JSON value",
		`[{"titel": "n"}]`:            `unknown field "titel"`,
		`[{"name": 5}]`:               "name",
		`[null]`:                      "limits[0].name: 1-64 of",
		`[{"name": "a b"}]`:           "limits[0].name: 1-64 of",
		`[{"name": "-a"}]`:            "limits[0].name: 1-64 of",
		`[{"name": "n"}]`:             "limits[0].algorithm: must be sliding, fixed, calendar or duplicate",
		`[` + good + `,` + good + `]`: `limits[1].name: "n" appears twice`,
		`[` + strings.Repeat(good+",", 16) + good + `]`:                                                                           "limits: at most 16 policies",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 0, "max": 1}]`:                                           "limits[0].per_ms: must be between 1 and 2678400000",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 2678400001, "max": 1}]`:                                  "limits[0].per_ms: must be between 1 and 2678400000",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 1, "max": -1}]`:                                          "limits[0].max: must be between 1 and 1000000000",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 1, "max": 1, "period": "day"}]`:                          "limits[0].period: not allowed with algorithm fixed",
		`[{"name": "n", "algorithm": "duplicate", "per_ms": 1, "max": 100001}]`:                                                   "limits[0].max: must be between 1 and 100000",
		`[{"name": "n", "algorithm": "sliding", "per": "device"}]`:                                                                "limits[0].windows: must have between 1 and 8",
		`[{"name": "n", "algorithm": "sliding", "per": "device", "max": 3}]`:                                                      "limits[0].max: not allowed with algorithm sliding",
		`[{"name": "n", "algorithm": "sliding", "per": "device", "windows": [{"max": 0, "per_ms": 1}]}]`:                          "limits[0].windows[0].max: must be between 1 and 100000",
		`[{"name": "n", "algorithm": "sliding", "per": "device", "windows": [{"max": 1, "per_ms": 5}, {"max": 2, "per_ms": 5}]}]`: "limits[0].windows[1].per_ms: 5 appears twice",
		`[{"name": "n", "algorithm": "calendar", "per": "device", "max": 1}]`:                                                     "limits[0].period: must be day, week or month",
		`[{"name": "n", "algorithm": "calendar", "per": "device", "max": 1, "period": "day", "timezone": "Mars/Olympus"}]`:        "limits[0].timezone: must be a time zone such as Asia/Shanghai",
		`[{"name": "n", "algorithm": "calendar", "per": "device", "max": 1, "period": "day", "timezone": "Local"}]`:               "limits[0].timezone",
		`[{"name": "n", "algorithm": "calendar", "per": "device", "max": 1, "period": "day", "per_ms": 5}]`:                       "limits[0].per_ms: not allowed with algorithm calendar",
		`[{"name": "n", "algorithm": "fixed", "per_ms": 1, "max": 1}]`:                                                            `limits[0].per: "" is not one of`,
		`[{"name": "n", "algorithm": "fixed", "per": "tags.", "per_ms": 1, "max": 1}]`:                                            `limits[0].per: "tags." is not one of`,
		`[{"name": "n", "algorithm": "fixed", "per": "devices", "per_ms": 1, "max": 1}]`:                                          `limits[0].per: "devices" is not one of`,
		`[{"name": "n", "algorithm": "fixed", "per": "device,device", "per_ms": 1, "max": 1}]`:                                    `limits[0].per: "device" appears twice`,
		`[{"name": "n", "algorithm": "fixed", "per": "attributes.x", "per_ms": 1, "max": 1}]`:                                     "set trust_device",
		`[{"name": "n", "algorithm": "fixed", "per": "tags.` + strings.Repeat("x", 256) + `", "per_ms": 1, "max": 1}]`:            "limits[0].per: at most 8 fields and 256 bytes",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 1, "max": 1, "on_error": "ajar"}]`:                       "limits[0].on_error: must be open or closed",
		`[{"name": "n", "algorithm": "fixed", "per": "device", "per_ms": 1, "max": 1, "on_limited": "fail"}]`:                     "limits[0].on_limited: must be wait or drop",
	} {
		_, err := policy.Parse([]byte(text))
		if !errors.Is(err, limits.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120s\n got %v\nwant %s", text, err, want)
		}
	}
}

// FuzzParse parses any text. Parse must refuse the text, or return policies that can be compiled and that do not change if they are encoded
// and parsed again.
func FuzzParse(f *testing.F) {
	f.Add([]byte(examplePolicies))
	f.Add([]byte(`[{"name":"n","per":"payload.a.b, kind","algorithm":"duplicate","per_ms":1,"max":1}]`))
	f.Add([]byte(`[{"name":"n","per":"tags.a","algorithm":"calendar","period":"month","timezone":"Africa/Cairo","max":1}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		policies, err := policy.Parse(text)
		if err != nil {
			if !errors.Is(err, limits.ErrInvalid) {
				t.Fatalf("not ErrInvalid: %v", err)
			}
			return
		}
		written, err := json.Marshal(policies)
		must.Succeed(t, err)
		again, err := policy.Parse(written)
		if err != nil || len(policies) > 0 && !reflect.DeepEqual(again, policies) {
			t.Fatalf("%s: %v, %v", written, again, err)
		}
		rules, err := limits.Compile("p", policies)
		must.Succeed(t, err)
		for _, r := range rules {
			if label := r.Subject(accountFacts("a")).Label; len(label) > 200 || label == "" || r.DescribeWindow(0) == "" || r.LongestWindow() <= 0 {
				t.Fatalf("%+v: %q", r.Policy, label)
			}
		}
	})
}

// TestSubjectsAreToldApart checks when the facts of two tasks belong to the same subject (what a rule counts separately). It also checks
// that labels of subjects do not show payloads.
func TestSubjectsAreToldApart(t *testing.T) {
	t.Parallel()
	rule := func(per string) *limits.Rule {
		rules := compileRules(t, policy.Policy{Name: "n", Per: per, Algorithm: policy.Fixed, PerMS: 1, Max: 1, TrustDevice: true})
		return rules[0]
	}
	type f = limits.Facts
	payload := func(text string) f { return f{Payload: json.RawMessage(text)} }
	for _, c := range []struct {
		per  string
		a, b f
		same bool
	}{
		{"device", f{Device: "d", Kind: "x"}, f{Device: "d", Kind: "y"}, true},
		{"device", f{Device: "d"}, f{Device: "e"}, false},
		{"batch", f{Batch: 1}, f{Batch: 2}, false},
		{"pool", f{Pool: "p", Device: "d"}, f{Pool: "p", Device: "e"}, true},
		{"pool", f{Pool: "p"}, f{Pool: "q"}, false},
		{"kind", f{Kind: "k", Batch: 1}, f{Kind: "k", Batch: 2}, true},
		{"kind", f{Kind: "k"}, f{Kind: "l"}, false},
		{"device,kind", f{Device: "d", Kind: "k"}, f{Device: "d", Kind: "l"}, false},
		{"payload.a", payload(`{"a": {"b": [1, 2]}}`), payload(`{"a": {"b": [2, 1]}}`), false},
		{"attributes.v", f{Attributes: json.RawMessage(`{"v": "1", "w": 1}`)}, f{Attributes: json.RawMessage(`{"w": 2, "v": "1"}`)}, true},
		{"tags.a", f{Tags: map[string]string{"a": "1"}}, f{Tags: map[string]string{"a": "1", "b": "2"}}, true},
		{"tags.a", f{}, f{Tags: map[string]string{"b": "2"}}, true},
		{"tags.a", f{}, f{Tags: map[string]string{"a": ""}}, false},
		{"tags.a,tags.b", f{Tags: map[string]string{"a": "1", "b": "2"}}, f{Tags: map[string]string{"a": "2", "b": "1"}}, false},
		{"tags.a,tags.b", f{Tags: map[string]string{"a": "12"}}, f{Tags: map[string]string{"a": "1", "b": "2"}}, false},
		{"payload", payload(`{"a": 1, "b": [1, 2]}`), payload(` {"b":[1,2],"a":1}`), true},
		{"payload", payload(`{"a": 1}`), payload(`{"a": "1"}`), false},
		{"payload", payload(`null`), payload(``), true},
		{"payload.a.b", payload(`{"a": {"b": 1, "c": 2}}`), payload(`{"a": {"b": 1}}`), true},
		{"payload.a.b", payload(`{"a": {"b": 1}}`), payload(`{"a.b": 1}`), true},
		{"payload.a.b", payload(`{"a": {"b": 1}}`), payload(`{"a": 1}`), false},
		{"payload.n", payload(`{"n": 9007199254740993}`), payload(`{"n": 9007199254740992}`), false},
		{"attributes.v", f{Attributes: json.RawMessage(`{"v": "1"}`)}, f{Attributes: json.RawMessage(`{"v": "2"}`)}, false},
	} {
		if got := rule(c.per).Subject(c.a) == rule(c.per).Subject(c.b); got != c.same {
			t.Errorf("per %s, %v and %v: same is %t", c.per, c.a, c.b, got)
		}
	}
	secret := rule("payload.secret,tags.a").Subject(f{Payload: json.RawMessage(`{"secret": "hunter2"}`), Tags: map[string]string{"a": "x\ny"}})
	if strings.Contains(secret.Label, "hunter2") || !strings.Contains(secret.Label, "tags.a=x?y") {
		t.Errorf("label %q", secret.Label)
	}
}

// TestWhatBecomesOfRefusalsIsNotCounted changes what a policy does with refused starts. The change must keep all
// counts and show them unchanged.
func TestWhatBecomesOfRefusalsIsNotCounted(t *testing.T) {
	t.Parallel()
	one := policy.Policy{Name: "n", Per: "payload.to,tags.a", Algorithm: policy.Fixed, PerMS: 1000, Max: 1}
	other := one
	other.OnLimited, other.Reveal = policy.DropOnLimit, true
	var keys []string
	var shown []limits.Subject
	for _, p := range []policy.Policy{one, other} {
		rules, err := limits.Compile("p", []policy.Policy{p})
		if err != nil || rules[0].Drops() != (p.OnLimited == policy.DropOnLimit) {
			t.Fatal(err)
		}
		s := rules[0].Subject(limits.Facts{Payload: json.RawMessage(`{"to": "+49\n1"}`), Tags: map[string]string{"a": "x"}})
		keys, shown = append(keys, limits.SubjectKey("s", rules[0], s)), append(shown, s)
	}
	if keys[0] != keys[1] {
		t.Errorf("counted as %q", keys)
	}
	if strings.Contains(shown[0].Label, "49") || shown[1].Label != `payload.to="+49\n1" tags.a=x` {
		t.Errorf("shown as %q and %q", shown[0].Label, shown[1].Label)
	}
}

// TestPeriodsBeginByTheClocksOfTheirZone checks that days, weeks and months begin by the clocks of the configured time zone. This must also
// hold if the clocks change at midnight, for days of 23 or 25 hours, and if the zone left out a day.
func TestPeriodsBeginByTheClocksOfTheirZone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		zone   string
		period policy.Period
		around string
		want   string // start of the current period, then its length
	}{
		{"Asia/Shanghai", policy.Day, "2026-03-01T15:59:59Z", "2026-02-28T16:00:00Z 24h0m0s"},
		{"Asia/Shanghai", policy.Day, "2026-03-01T16:00:00Z", "2026-03-01T16:00:00Z 24h0m0s"},
		{"Europe/Berlin", policy.Day, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z 23h0m0s"},
		{"Europe/Berlin", policy.Day, "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z 25h0m0s"},
		{"Africa/Cairo", policy.Day, "2026-04-24T12:00:00Z", "2026-04-23T22:00:00Z 23h0m0s"}, // this day has no midnight: the clocks change from 0:00 to 1:00
		{"America/Sao_Paulo", policy.Day, "2018-11-04T12:00:00Z", "2018-11-04T03:00:00Z 23h0m0s"},
		{"Pacific/Apia", policy.Day, "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z 24h0m0s"}, // December 30 was left out in this time zone
		{"Pacific/Apia", policy.Day, "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z 24h0m0s"},
		{"Pacific/Kiritimati", policy.Day, "2026-03-01T12:00:00Z", "2026-03-01T10:00:00Z 24h0m0s"},
		{"Etc/GMT+12", policy.Day, "2026-03-01T11:00:00Z", "2026-02-28T12:00:00Z 24h0m0s"},
		{"Asia/Kolkata", policy.Day, "2026-03-01T18:30:00Z", "2026-03-01T18:30:00Z 24h0m0s"},
		{"Asia/Kathmandu", policy.Day, "2026-03-01T18:14:59Z", "2026-02-28T18:15:00Z 24h0m0s"},
		{"America/St_Johns", policy.Day, "2026-03-08T12:00:00Z", "2026-03-08T03:30:00Z 23h0m0s"},
		{"America/St_Johns", policy.Day, "2026-11-01T12:00:00Z", "2026-11-01T02:30:00Z 25h0m0s"},
		{"Australia/Lord_Howe", policy.Day, "2026-04-05T00:00:00Z", "2026-04-04T13:00:00Z 24h30m0s"}, // the clocks change by half an hour
		{"Australia/Lord_Howe", policy.Day, "2026-10-04T00:00:00Z", "2026-10-03T13:30:00Z 23h30m0s"},
		{"Pacific/Chatham", policy.Day, "2026-04-05T00:00:00Z", "2026-04-04T10:15:00Z 25h0m0s"},
		{"Pacific/Chatham", policy.Week, "2026-09-27T00:00:00Z", "2026-09-20T11:15:00Z 167h0m0s"},
		{"Europe/Berlin", policy.Month, "2026-10-31T22:59:59Z", "2026-09-30T22:00:00Z 745h0m0s"},
		{"Australia/Lord_Howe", policy.Month, "2026-10-15T00:00:00Z", "2026-09-30T13:30:00Z 743h30m0s"},
		{"", policy.Week, "2026-03-01T11:00:00Z", "2026-02-23T00:00:00Z 168h0m0s"}, // this time is on a Sunday
		{"Europe/Berlin", policy.Week, "2026-03-29T11:00:00Z", "2026-03-22T23:00:00Z 167h0m0s"},
		{"", policy.Month, "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z 744h0m0s"},
		{"", policy.Month, "2028-02-29T00:00:00Z", "2028-02-01T00:00:00Z 696h0m0s"},
	} {
		zone, err := time.LoadLocation(c.zone)
		must.Succeed(t, err)
		around, err := time.Parse(time.RFC3339, c.around)
		must.Succeed(t, err)
		b := limits.Boundaries(c.period, zone, around)
		if got := fmt.Sprintf("%s %s", b[1].UTC().Format(time.RFC3339), b[2].Sub(b[1])); got != c.want {
			t.Errorf("%s of %s around %s: %s, want %s", c.period, c.zone, c.around, got, c.want)
		}
	}
}
