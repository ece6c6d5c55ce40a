package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

const protocolPage = "../../docs/protocol.md"

func readProtocolPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(protocolPage)
	must.Succeed(t, err)
	return string(text)
}

// protocolExamples returns the JSON examples of docs/protocol.md by their names.
func protocolExamples(t *testing.T) map[string]string {
	t.Helper()
	text := readProtocolPage(t)
	named := regexp.MustCompile("(?s)<!-- example: ([a-z-]+) -->\n```json\n(.*?)\n```")
	found := map[string]string{}
	for _, match := range named.FindAllStringSubmatch(text, -1) {
		if _, ok := found[match[1]]; ok {
			t.Errorf("two examples are called %s", match[1])
		}
		found[match[1]] = match[2]
	}
	if blocks := strings.Count(text, "```json"); blocks != len(found) {
		t.Errorf("%d JSON blocks, %d examples: one has no name", blocks, len(found))
	}
	return found
}

// decodeStrict decodes an example into a type of the program. It fails if the type does not have every field of the example
// with the same type.
func decodeStrict[T any](t *testing.T, name, text string) T {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var v T
	if err := decoder.Decode(&v); err != nil {
		t.Errorf("example %s: %v", name, err)
	}
	return v
}

// exampleRequests lists the requests of docs/protocol.md, in an order in which each is accepted.
func exampleRequests() []struct {
	name, method, path string
	status             int
} {
	return []struct {
		name, method, path string
		status             int
	}{
		{"put-pool", "PUT", "/v1/pools/ar:330100", 201},
		{"create-batch", "POST", "/v1/batches", 201},
		{"create-batch-tasks", "POST", "/v1/batches", 201},
		{"put-profile", "PUT", "/v1/profiles/solar", 201},
		{"put-limit-set", "PUT", "/v1/limits/sms", 201},
		{"take", "POST", "/v1/limits/sms/take", 200},
		{"take-many", "POST", "/v1/limits/sms/take", 200},
		{"return", "POST", "/v1/limits/sms/return", 200},
		{"create-caller", "POST", "/v1/tokens", 201},
		{"acquire-lease", "POST", "/v1/pools/ar:330100/leases", 201},
		{"renew-lease", "POST", "/v1/pools/ar:330100/leases/{lease}/renew", 200},
		{"create-device", "POST", "/v1/devices", 201},
		{"rotate-token", "POST", "/v1/devices/ar-7/token", 200},
		{"retag", "POST", "/v1/devices/retag?tag=city:hangzhou", 200},
		{"patch-device", "PATCH", "/v1/devices/ar-7", 200},
		{"patch-batch", "PATCH", "/v1/batches/2", 200},
		{"pause-batch", "POST", "/v1/batches/2/pause", 200},
		{"release-slot", "POST", "/v1/pools/ar:330100/slots/0/release", 200},
		{"put-pool-full", "PUT", "/v1/pools/ar:330100", 200},
	}
}

// exampleResponses lists the schemas of the responses in docs/protocol.md. If path is not empty, the response can be read at this path
// after the requests were sent.
func exampleResponses() map[string]struct{ schema, path string } {
	return map[string]struct{ schema, path string }{
		"grant-check":   {"GrantCheck", "/v1/pools/ar:330100/grants/1"},
		"slots":         {"SlotsBody", "/v1/pools/ar:330100/slots"},
		"history":       {"HoldingList", "/v1/pools/ar:330100/history"},
		"series":        {"Series", "/v1/pools/ar:330100/series"},
		"created-batch": {"BatchCreated", ""},
		"batch":         {"BatchBody", "/v1/batches/2"},
		"results":       {"Results", "/v1/batches/1/results?fields=down_mbps,net.rtt&aggregate=down_mbps&by_tag=site"},
		"why":           {"WhyBody", "/v1/tasks/1/why"},
		"waiting":       {"Waiting", "/v1/batches/2/waiting"},
		"failures":      {"Failures", "/v1/batches/2/failures?by=tags.model,attributes.firmware"},
		"taken":         {"Taken", ""},
		"lease":         {"Lease", "/v1/pools/ar:330100/leases"},
		"lease-waiting": {"Lease", ""},
		"usage-of-pool": {"Usage", "/v1/pools/ar:330100/usage"},
		"found":         {"Found", "/v1/find?q=ar"},
	}
}

func TestRequestsOfTheProtocolAreTaken(t *testing.T) {
	t.Parallel()
	all := protocolExamples(t)
	runOnServers(t, func(b *testAPI) {
		leased := [2]string{"", "40190"} // number and token of the lease
		for _, r := range exampleRequests() {
			if r.name == "release-slot" {
				b.ReportUntilGranted("ar-8")
			}
			a := b.Call(r.method, strings.ReplaceAll(r.path, "{lease}", leased[0]), adminToken, strings.ReplaceAll(all[r.name], "40190", leased[1])).Expect(r.status)
			if r.name == "acquire-lease" {
				leased = [2]string{numberText(a.Object()["lease"]), numberText(a.Object()["token"])}
			}
			if r.name == "create-batch-tasks" {
				_, want, _ := strings.Cut(removeSpaces(all["created-batch"]), ",")
				if _, got, _ := strings.Cut(strings.TrimSpace(string(a.Body)), ","); got != want {
					b.Errorf("created-batch: %s, the page says %s", got, want)
				}
			}
		}
		for _, answer := range exampleResponses() {
			if answer.path != "" {
				b.Get(answer.path).Expect(200)
			}
		}
	})
}

func TestReportsOfTheProtocolAreTaken(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for name, text := range protocolExamples(t) {
		if !strings.HasPrefix(name, "report") {
			continue
		}
		var got struct {
			deviceReply
			Re string
		}
		report := decodeStrict[struct {
			ID      string
			Results []any
			Accept  *bool
			Running, Attributes,
			_ any
		}](t, name, text)
		if b.SendReport("ar-9", text).Expect(200).Decode(&got); got.Re != report.ID || len(got.Acks) != len(report.Results) || strings.Contains(got.sortedOutcomes(), "rejected") {
			t.Errorf("%s: answered %+v", name, got)
		}
	}
}

// TestAnswersOfTheProtocolAreDescribed compares every response in docs/protocol.md with the program. It also reports examples that no test
// uses.
func TestAnswersOfTheProtocolAreDescribed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	d, sent := b.readDocument(), map[string]bool{}
	for _, r := range exampleRequests() {
		sent[r.name] = true
	}
	for name, text := range protocolExamples(t) {
		schema := exampleResponses()[name].schema
		switch {
		case sent[name], strings.HasPrefix(name, "report"):
		case schema != "":
			d.checkExample(t, schema, name, text)
		case strings.HasPrefix(name, "reply"):
			checkReply(t, name, text)
		case name == "push-wake":
			push := decodeStrict[struct {
				Reason devices.Reason
				HoldMS int64 `json:"hold_ms"`
			}](t, name, text)
			if push.Reason != devices.ReasonWake || push.HoldMS <= 0 {
				t.Errorf("%s: %+v", name, push)
			}
		case name == "problem":
			p := decodeStrict[operators.Problem](t, name, text)
			got := b.SendReport("d", `{"results": [}`).ExpectProblem(p.Status, p.Code)
			if got.Detail, p.Detail = "", ""; !cmp.Equal(got, p) {
				t.Errorf("problem %+v, the page says %+v", got, p)
			}
		default:
			t.Errorf("example %s: nothing tests it", name)
		}
	}
}

// checkExample checks that an example matches the schema. The example may leave fields out.
func (d document) checkExample(t *testing.T, schema, name, text string) {
	t.Helper()
	var shown any
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	described, ok := d.Components.Schemas[schema]
	if !ok {
		t.Fatalf("%s: no schema %s", name, schema)
	}
	for _, fault := range d.diffSchema(described, shown, name) {
		if !strings.HasSuffix(fault, ": missing") {
			t.Error(fault)
		}
	}
}

// checkReply checks that an example equals the program's encoding of the same reply.
func checkReply(t *testing.T, name, text string) {
	t.Helper()
	reply := decodeStrict[devices.Reply](t, name, text)
	var shown, written map[string]any
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if err := json.Unmarshal(reply.Encode(), &written); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if fmt.Sprint(shown) != fmt.Sprint(written) {
		t.Errorf("%s: the program writes %v", name, written)
	}
}

// TestProtocolListsTheCodes compares the table of codes and statuses in docs/protocol.md with the program.
func TestProtocolListsTheCodes(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, parser.ParseComments)
	must.Succeed(t, err)
	var want []string
	ast.Inspect(file, func(node ast.Node) bool {
		if value, ok := node.(*ast.ValueSpec); ok {
			literal, _ := value.Values[0].(*ast.BasicLit)
			want = append(want, fmt.Sprintf("| `%s` | %.3s |", strings.Trim(literal.Value, `"`), value.Comment.Text()))
		}
		return true
	})
	for _, code := range []string{devices.CodeInvalidDeviceID, devices.CodeInvalidPool} {
		want = append(want, fmt.Sprintf("| `%s` | 400 |", code))
	}
	for _, r := range devices.Refusals() {
		if r.Code != "" {
			want = append(want, fmt.Sprintf("| `%s` | %d |", r.Code, r.Status))
		}
	}
	_, section, _ := strings.Cut(readProtocolPage(t), "<!-- codes -->\n")
	section, _, _ = strings.Cut(section, "\n\n")
	rows := strings.Split(section, "\n")
	got := make([]string, 0, len(rows))
	for _, row := range rows[min(2, len(rows)):] {
		got = append(got, strings.Join(strings.SplitAfterN(row, "|", 4)[:3], ""))
	}
	slices.Sort(want)
	want = slices.Compact(want) // some codes are used for reports and for operators
	if !slices.Equal(got, want) {
		t.Errorf("the page lists\n%s\nthe program has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestProtocolListsTheKindsOfEvents checks that docs/protocol.md has every kind of event that the source of the ledger contains as a
// literal. Kinds that end in the state of a task are not checked, because the program puts them together from the state.
func TestProtocolListsTheKindsOfEvents(t *testing.T) {
	t.Parallel()
	_, listed, _ := strings.Cut(readProtocolPage(t), "Kinds (more may follow): ")
	listed, _, _ = strings.Cut(listed, "`actor`")
	files, err := filepath.Glob("../../store/*.go")
	must.Succeed(t, err)
	written := regexp.MustCompile(`["']((?:access|batch|device|ledger|limit_set|pool|profile|result|slot|task|token)\.[a-z_]+)["']`)
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		for _, match := range written.FindAllSubmatch(text, -1) {
			found[string(match[1])] = true
		}
	}
	for kind := range found {
		if kind != "ledger.db" && !strings.Contains(listed, "`"+kind+"`") {
			t.Errorf("the page does not list %s", kind)
		}
	}
	if len(found) < 30 {
		t.Errorf("%d kinds found in the ledger's code", len(found))
	}
}

// TestProtocolMarksWhatIsNotYet compares the table of operators' calls in docs/protocol.md with the registered operations.
func TestProtocolMarksWhatIsNotYet(t *testing.T) {
	t.Parallel()
	operations := startEmbedded(t).readDocument().operations()
	call := regexp.MustCompile("`((?:GET|PUT|POST|PATCH|DELETE)(?:, `?(?:GET|PUT|POST|PATCH|DELETE))*) (/v1/[^`?]*)")
	documented := map[string]bool{"POST /v1/devices/{device}/report": true}
	for line := range strings.Lines(readProtocolPage(t)) {
		if !strings.HasPrefix(line, "| `") || !strings.Contains(line, "/v1/") {
			continue
		}
		for _, match := range call.FindAllStringSubmatch(line, -1) {
			name := match[1] + " " + match[2]
			_, exists := operations[name]
			documented[name] = true
			if later := strings.Contains(line, "| **not yet.**"); exists == later {
				t.Errorf("%s: exists %t, marked as not yet %t", name, exists, later)
			}
		}
	}
	for name := range operations {
		if !documented[name] {
			t.Errorf("%s is not on the page", name)
		}
	}
}

// TestProblemsAreMadeOfKnownCodes checks that every code is a constant, because docs/protocol.md is only compared with constants.
func TestProblemsAreMadeOfKnownCodes(t *testing.T) {
	t.Parallel()
	names, err := os.ReadDir(".")
	must.Succeed(t, err)
	literal := regexp.MustCompile(`(newProblem\([^,]+, "|\bCode = ")`)
	for _, entry := range names {
		if strings.HasSuffix(entry.Name(), "_test.go") || !strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(entry.Name())
		must.Succeed(t, err)
		for line := range bytes.Lines(text) {
			if literal.Match(line) {
				t.Errorf("%s: %s", entry.Name(), line)
			}
		}
	}
}
