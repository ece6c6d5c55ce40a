package devices_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestDecodeReport(t *testing.T) {
	t.Parallel()
	accept := func(r devices.Report) devices.Report { r.Accept = true; return r }
	results := func(r ...devices.Result) devices.Report { return devices.Report{Accept: true, Results: r} }
	running := func(r ...devices.Running) devices.Report { return devices.Report{Accept: true, Running: r} }
	ok := devices.Result{Task: 1, Token: 2, Status: devices.StatusSucceeded}
	with := func(change func(*devices.Result)) devices.Result { r := ok; change(&r); return r }
	tests := map[string]struct {
		body string
		want devices.Report
	}{
		"nothing":          {"", accept(devices.Report{})},
		"white space":      {" \r\n\t", accept(devices.Report{})},
		"null":             {" null ", accept(devices.Report{})},
		"empty object":     {" { } ", accept(devices.Report{})},
		"null fields":      {`{"id":null,"results":null,"running":null,"accept":null,"attributes":null}`, accept(devices.Report{})},
		"empty fields":     {`{"id":"","results":[ ],"running":{},"accept":"","attributes":{ }}`, accept(devices.Report{})},
		"the whole":        {fullReportJSON, fullReport()},
		"accept false":     {`{"accept":false}`, devices.Report{}},
		"unknown fields":   {`{"x":{"y":1},"ID":"no","results":[{"task":1,"token":2,"status":"succeeded","x":0}],"running":[{"task":1,"token":2,"y":0,"z":0}]}`, devices.Report{Accept: true, UnknownFields: 5, Results: []devices.Result{ok}, Running: []devices.Running{{Task: 1, Token: 2}}}},
		"last field wins":  {`{"id":"a","results":[{"task":9,"token":2,"status":"failed","task":1,"status":"succeeded"}],"id":"b"}`, devices.Report{ID: "b", Accept: true, Results: []devices.Result{ok}}},
		"escaped key":      {`{"\u0069d":"a"}`, accept(devices.Report{ID: "a"})},
		"id of 128":        {`{"id":"` + strings.Repeat("é", 128) + `"}`, accept(devices.Report{ID: strings.Repeat("é", 128)})},
		"numbers as text":  {`{"results":[{"task":"1","token":"\u0032","status":"succeeded"}]}`, results(ok)},
		"largest number":   {`{"running":[{"task":9007199254740991,"token":"9007199254740991"}]}`, running(devices.Running{Task: 1<<53 - 1, Token: 1<<53 - 1})},
		"duplicate entry":  {`{"running":[{"task":1,"token":2},{"task":1,"token":2}]}`, running(devices.Running{Task: 1, Token: 2}, devices.Running{Task: 1, Token: 2})},
		"output null":      {resultWithField(`"output":null`), results(ok)},
		"output as sent":   {resultWithField(`"output": {"a" : [1.50, 1e400,"<>"]} `), results(with(func(r *devices.Result) { r.Output = json.RawMessage(`{"a" : [1.50, 1e400,"<>"]}`) }))},
		"output is opaque": {resultWithField(`"output":""`), results(with(func(r *devices.Result) { r.Output = json.RawMessage(`""`) }))},
		"output escapes":   {resultWithField(`"output":"\ud83d\ude00\\u0000\"\/"`), results(with(func(r *devices.Result) { r.Output = json.RawMessage(`"\ud83d\ude00\\u0000\"\/"`) }))},
		"error repaired":   {resultWithField(`"error":"\u0000 \ud800 \uDfff \ud83d\ude00 ` + "\x00\xff" + `"`), results(with(func(r *devices.Result) { r.Error = "\ufffd \ufffd \ufffd 😀 \ufffd\ufffd" }))},
		"error cut":        {resultWithField(`"error":"a` + strings.Repeat("é", 2048) + `"`), results(with(func(r *devices.Result) { r.Error = "a" + strings.Repeat("é", 2046) + "…" }))},
		"largest output":   {resultWithField(`"output":"` + strings.Repeat("x", 32<<10-2) + `"`), results(with(func(r *devices.Result) { r.Output = json.RawMessage(`"` + strings.Repeat("x", 32<<10-2) + `"`) }))},
		"output too large": {resultWithField(`"output":"` + strings.Repeat("x", 32<<10-1) + `"`), results(with(func(r *devices.Result) { r.OutputDropped = true }))},
		"retry after":      {returnedJSON(`1500`), results(returnedResult(1500 * time.Millisecond))},
		"retry clamped":    {returnedJSON(`"86400001"`), results(returnedResult(24 * time.Hour))},
		"retry beyond int": {returnedJSON(strings.Repeat("9", 40)), results(returnedResult(24 * time.Hour))},
		"retry stray":      {resultWithField(`"retry_after_ms":-1`), results(ok)},
		"progress":         {progressJSON(`0.25`), running(devices.Running{Task: 1, Token: 2, Progress: 0.25})},
		"progress 1e400":   {progressJSON(`1e400`), running(devices.Running{Task: 1, Token: 2})},
		"progress above":   {progressJSON(`1.01`), running(devices.Running{Task: 1, Token: 2})},
		"progress below":   {progressJSON(`-0.5`), running(devices.Running{Task: 1, Token: 2})},
		"progress text":    {progressJSON(`"half"`), running(devices.Running{Task: 1, Token: 2})},
		"attributes":       {`{"attributes":{"a":null,"b":{"c":"\u0000"}}}`, accept(devices.Report{Attributes: json.RawMessage(`{"a":null,"b":{"c":"` + "\ufffd" + `"}}`)})},
		"depth 16":         {resultWithField(`"output":` + nestedArray(13)), results(with(func(r *devices.Result) { r.Output = json.RawMessage(nestedArray(13)) }))},
		"brackets in text": {`{"id":"` + strings.Repeat(`[{\"`, 30) + `"}`, accept(devices.Report{ID: strings.Repeat(`[{"`, 30)})},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := devices.DecodeReport([]byte(test.body))
			must.Succeed(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDecodeReportRepairsOutput(t *testing.T) {
	t.Parallel()
	body := []byte(resultWithField(`"output": {"k\u0000": "a` + "\x00\xff\xc3" + `\ud800x\ud800\ud83d\ude00\ude00 é"} `))
	sent := string(body)
	report, err := devices.DecodeReport(body)
	must.Succeed(t, err)
	want := "{\"k\ufffd\": \"a\ufffd\ufffd\ufffd\ufffdx\ufffd\\ud83d\\ude00\ufffd é\"}"
	if got := string(report.Results[0].Output); got != want {
		t.Errorf("output %q, want %q", got, want)
	}
	if string(body) != sent {
		t.Error("the body was written to")
	}
}

func TestDecodeReportMarksBadEntries(t *testing.T) {
	t.Parallel()
	good := `{"task":1,"token":2,"status":"succeeded"}`
	tests := map[string]struct {
		entry string
		want  devices.Result
	}{
		"number":             {`7`, devices.Result{Invalid: "not_an_object"}},
		"null":               {`null`, devices.Result{Invalid: "not_an_object"}},
		"array":              {`[{}]`, devices.Result{Invalid: "not_an_object"}},
		"empty":              {`{}`, devices.Result{Invalid: "invalid_task"}},
		"task text":          {`{"task":"x","token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task negative":      {`{"task":-1,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task zero":          {`{"task":0,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task float":         {`{"task":1.0,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task exponent":      {`{"task":1e3,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task 2^53":          {`{"task":9007199254740992,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task huge":          {`{"task":` + strings.Repeat("9", 99) + `,"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task padded":        {`{"task":" 1","token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task leading zero":  {`{"task":"01","token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"task object":        {`{"task":{"id":1},"token":2,"status":"failed"}`, devices.Result{Token: 2, Status: "failed", Invalid: "invalid_task"}},
		"token missing":      {`{"task":1,"status":"failed"}`, devices.Result{Task: 1, Status: "failed", Invalid: "invalid_token"}},
		"token true":         {`{"task":1,"token":true,"status":"failed"}`, devices.Result{Task: 1, Status: "failed", Invalid: "invalid_token"}},
		"status missing":     {`{"task":1,"token":2}`, devices.Result{Task: 1, Token: 2, Invalid: "invalid_status"}},
		"status unknown":     {`{"task":1,"token":2,"status":"Succeeded"}`, devices.Result{Task: 1, Token: 2, Invalid: "invalid_status"}},
		"status number":      {`{"task":1,"token":2,"status":1}`, devices.Result{Task: 1, Token: 2, Invalid: "invalid_status"}},
		"error number":       {`{"task":1,"token":2,"status":"failed","error":5}`, devices.Result{Task: 1, Token: 2, Status: "failed", Invalid: "invalid_error"}},
		"retry negative":     {`{"task":1,"token":2,"status":"returned","retry_after_ms":-1}`, devices.Result{Task: 1, Token: 2, Status: "returned", Invalid: "invalid_retry_after"}},
		"retry fraction":     {`{"task":1,"token":2,"status":"returned","retry_after_ms":1.5}`, devices.Result{Task: 1, Token: 2, Status: "returned", Invalid: "invalid_retry_after"}},
		"first code of many": {`{"task":1,"token":0,"status":0,"error":0}`, devices.Result{Task: 1, Invalid: "invalid_token"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := devices.DecodeReport([]byte(`{"results":[` + good + `,` + test.entry + ` , ` + good + `]}`))
			must.Succeed(t, err)
			neighbour := devices.Result{Task: 1, Token: 2, Status: devices.StatusSucceeded}
			if diff := cmp.Diff([]devices.Result{neighbour, test.want, neighbour}, got.Results); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDecodeReportMarksBadRunning(t *testing.T) {
	t.Parallel()
	got, err := devices.DecodeReport([]byte(`{"running":["x",{"task":"","token":2},{"task":1,"token":-2},{"task":1,"token":2}]}`))
	must.Succeed(t, err)
	want := []devices.Running{
		{Invalid: "not_an_object"}, {Token: 2, Invalid: "invalid_task"}, {Task: 1, Invalid: "invalid_token"}, {Task: 1, Token: 2},
	}
	if diff := cmp.Diff(want, got.Running); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDecodeReportRefusesWhole(t *testing.T) {
	t.Parallel()
	many := func(n int, entry string) string { return "[" + strings.Repeat(entry+",", n-1) + entry + "]" }
	tests := map[string]struct {
		body   string
		reason devices.Reason
		code   string
		detail string // the Detail of the error must contain it
	}{
		"body":             {`{"x":"` + strings.Repeat("x", 64<<10-7) + `"}`, "too_large", "body_too_large", "65536"},
		"not JSON":         {`{"id":}`, "invalid", "invalid_json", "body"},
		"cut":              {`{"results":[{"task":1`, "invalid", "invalid_json", "body"},
		"two documents":    {`{} {}`, "invalid", "invalid_json", "body"},
		"NaN":              {`{"running":[{"task":1,"token":2,"progress":NaN}]}`, "invalid", "invalid_json", "body"},
		"NUL outside text": {"{\x00}", "invalid", "invalid_json", "body"},
		"bad bytes":        {"\xff\xfe{}", "invalid", "invalid_json", "body"},
		"broken escape":    {`{"id":"\u00zz"}`, "invalid", "invalid_json", "body"},
		"cut escape":       {`{"id":"\u0`, "invalid", "invalid_json", "body"},
		"a number":         {`5`, "invalid", "invalid_field", "object"},
		"an array":         {`[1]`, "invalid", "invalid_field", "object"},
		"depth":            {resultWithField(`"output":` + nestedArray(14)), "invalid", "too_deep", "16"},
		"100000 deep":      {strings.Repeat("[", 60000), "invalid", "too_deep", "16"},
		"results object":   {`{"results":{"task":1}}`, "invalid", "invalid_field", "results"},
		"results text":     {`{"results":"x"}`, "invalid", "invalid_field", "results"},
		"running number":   {`{"running":1}`, "invalid", "invalid_field", "running"},
		"id number":        {`{"id":5}`, "invalid", "invalid_field", "id"},
		"id of 129":        {`{"id":"` + strings.Repeat("x", 129) + `"}`, "invalid", "invalid_field", "128"},
		"accept number":    {`{"accept":1}`, "invalid", "invalid_field", "accept"},
		"accept text":      {`{"accept":"false"}`, "invalid", "invalid_field", "accept"},
		"attributes array": {`{"attributes":[1]}`, "invalid", "invalid_field", "attributes"},
		"attributes size":  {`{"attributes":{"x":"` + strings.Repeat("x", 8<<10-7) + `"}}`, "invalid", "attributes_too_large", "8192"},
		"attributes keys":  {`{"attributes":{` + jsonMembers(64) + `"b":2}}`, "invalid", "attributes_too_large", "64"},
		"101 results":      {`{"results":` + many(101, "{}") + `}`, "invalid", "too_many_results", "100"},
		"101 running":      {`{"running":` + many(101, "1") + `}`, "invalid", "too_many_running", "100"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, err := devices.DecodeReport([]byte(test.body))
			var refused *devices.Error
			if !errors.As(err, &refused) {
				t.Fatalf("report %+v, error %v", report, err)
			}
			if refused.Reason != test.reason || refused.Code != test.code || !strings.Contains(refused.Detail, test.detail) {
				t.Errorf("%+v, want %s %s with %q", refused, test.reason, test.code, test.detail)
			}
		})
	}
}

func TestDecodeReportKeepsWithinLimits(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"body":            `{"x":"` + strings.Repeat("x", 64<<10-8) + `"}`,
		"attributes size": `{"attributes":{"x":"` + strings.Repeat("x", 8<<10-8) + `"}}`,
		"attributes keys": `{"attributes":{` + jsonMembers(63) + `"b":2}}`,
		"100 of each":     `{"results":[` + strings.Repeat("1,", 99) + `1],"running":[` + strings.Repeat("1,", 99) + `1]}`,
	} {
		if _, err := devices.DecodeReport([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusedReportNamesItsID(t *testing.T) {
	t.Parallel()
	report, err := devices.DecodeReport([]byte(`{"results":7,"id":"b7-17"}`))
	if err == nil || report.ID != "b7-17" {
		t.Errorf("id %q, error %v", report.ID, err)
	}
}

// TestWhatIsNotReadHasNoID checks a report whose body cannot be decoded. The decoded report has no ID, so its refusal over MQTT has no
// field re.
func TestWhatIsNotReadHasNoID(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"too large": `{"id":"b7-17","x":"` + strings.Repeat("x", devices.MaxBody) + `"}`,
		"no JSON":   `{"id":"b7-17"`,
		"too deep":  `{"id":"b7-17","x":` + strings.Repeat("[", 20) + strings.Repeat("]", 20) + `}`,
	} {
		if report, err := devices.DecodeReport([]byte(body)); err == nil || report.ID != "" {
			t.Errorf("%s: id %q, error %v", name, report.ID, err)
		}
	}
}

func TestReplyEncode(t *testing.T) {
	t.Parallel()
	reply := devices.Reply{
		Re: "b7-17", Reason: devices.ReasonGranted, ReportAfterMS: 30000,
		Acks: []devices.Ack{{Task: 812, Token: 40177, Outcome: devices.OutcomeRecorded}},
		Task: &devices.Task{
			ID: 814, Token: 40190, Pool: "ar:330100", Slot: 17, Kind: "speedtest",
			Payload: json.RawMessage(`{"url":"a&b"}`), Attempt: 1, LeaseMS: 290000,
		},
	}
	want := `{"re":"b7-17","acks":[{"task":812,"token":40177,"outcome":"recorded"}],` +
		`"task":{"id":814,"token":40190,"pool":"ar:330100","slot":17,"kind":"speedtest","payload":{"url":"a&b"},` +
		`"attempt":1,"redelivered":0,"lease_ms":290000},"reason":"granted","held_ms":0,"report_after_ms":30000}`
	if got := string(reply.Encode()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTheLargestReplyHas64KiB checks that the largest reply has at most 64 KiB. The largest reply has a task with the largest payload, and an
// entry for each result and each running task of the largest report.
func TestTheLargestReplyHas64KiB(t *testing.T) {
	t.Parallel()
	const largest, maxPayload = 1<<53 - 1, 32 << 10
	task := devices.Task{ID: largest, Token: largest, Pool: strings.Repeat("p", 64), Slot: largest, Kind: strings.Repeat("k", 64), Payload: json.RawMessage(`"` + strings.Repeat("x", maxPayload-2) + `"`), Attempt: largest, Redelivered: largest, LeaseMS: largest}
	reply := devices.Reply{Re: strings.Repeat("\x01", devices.MaxReportID), Task: &task, Reason: devices.ReasonGranted, Code: devices.CodeAttributesTooLarge, Detail: strings.Repeat("d", 200)}
	for range devices.MaxResults {
		reply.Acks = append(reply.Acks, devices.Ack{Task: largest, Token: largest, Outcome: devices.OutcomeDuplicate, Code: devices.CodeInvalidRetryAfter})
		reply.Cancel = append(reply.Cancel, devices.Cancel{Task: largest, Token: largest, Why: devices.CancelCancelled})
	}
	if size := len(reply.Encode()); size > 64<<10 {
		t.Errorf("%d bytes", size)
	}
}

func TestReplyEncodeGrantsNothingItCannotSend(t *testing.T) {
	t.Parallel()
	reply := devices.Reply{
		Re: "1", Reason: devices.ReasonGranted, Acks: []devices.Ack{{Task: 1, Token: 2, Outcome: "recorded"}},
		Task: &devices.Task{Payload: json.RawMessage(`{`)},
	}
	want := `{"re":"1","acks":[{"task":1,"token":2,"outcome":"recorded"}],"reason":"unavailable","held_ms":0,"report_after_ms":0}`
	if got := string(reply.Encode()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// jsonMembers returns the text of n members of a JSON object, each with a comma after it.
func jsonMembers(n int) (all string) {
	for i := range n {
		all += fmt.Sprintf(`"a%d":1,`, i)
	}
	return all
}

func BenchmarkDecodeReport(b *testing.B) {
	large := `{"id":"b7-17","results":[{"task":1,"token":2,"status":"succeeded","output":{"samples":[` +
		strings.Repeat("94.125, ", 3500) + `0]}}]}`
	for name, body := range map[string]string{
		"idle": `{"id":"b7-17"}`, "running": `{"id":"b7-18","running":[{"task":813,"token":40178,"progress":0.4}]}`,
		"result": fullReportJSON, "28KB": large,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				_, err := devices.DecodeReport([]byte(body))
				must.Succeed(b, err)
			}
		})
	}
}

const fullReportJSON = `{"id": "b7-17",
 "results": [{"task": 812, "token": 40177, "status": "succeeded", "output": {"down_mbps": 94.1}, "error": ""}],
 "running": [{"task": 813, "token": 40178, "progress": 0.4}],
 "accept": true,
 "attributes": {"firmware": "7.2"}}`

func fullReport() devices.Report {
	return devices.Report{
		ID:         "b7-17",
		Results:    []devices.Result{{Task: 812, Token: 40177, Status: "succeeded", Output: json.RawMessage(`{"down_mbps": 94.1}`)}},
		Running:    []devices.Running{{Task: 813, Token: 40178, Progress: 0.4}},
		Accept:     true,
		Attributes: json.RawMessage(`{"firmware": "7.2"}`),
	}
}

func resultWithField(field string) string {
	return `{"results":[{"task":1,"token":2,"status":"succeeded",` + field + `}]}`
}

func returnedJSON(ms string) string {
	return `{"results":[{"task":1,"token":2,"status":"returned","retry_after_ms":` + ms + `}]}`
}

func returnedResult(d time.Duration) devices.Result {
	return devices.Result{Task: 1, Token: 2, Status: devices.StatusReturned, RetryAfter: d}
}

func progressJSON(n string) string {
	return fmt.Sprintf(`{"running":[{"task":1,"token":2,"progress":%s}]}`, n)
}

// nestedArray returns the text of JSON arrays that are nested depth levels deep.
func nestedArray(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}
