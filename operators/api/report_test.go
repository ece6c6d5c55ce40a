package api_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// deviceReply has those fields of a reply that a device reads.
type deviceReply struct {
	Re      string
	Acks    []struct{ Outcome, Code string }
	Renewed []struct{ Task int64 }
	Cancel  []struct{ Why string }
	Reason  string
}

// sortedOutcomes returns the outcomes of the results in sorted order, because their order in a reply is not
// guaranteed.
func (r deviceReply) sortedOutcomes() string {
	var all []string
	for _, a := range r.Acks {
		all = append(all, strings.TrimSuffix(a.Outcome+":"+a.Code, ":"))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestReportIsAnsweredWhole(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, body := range []string{``, ` `, `{}`, `{"id":"r","unknown":{"field":[1]}}`} {
		for _, contentType := range []string{"", "application/json", "text/plain", "application/x-www-form-urlencoded", ";;"} {
			request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, b.URL+"/v1/devices/d/report", strings.NewReader(body))
			request.Header.Set("Authorization", "Bearer "+fleetToken)
			request.Header.Set("Content-Type", contentType)
			a := b.DoRequest(request).Expect(200)
			if got := a.Header.Get("Content-Length"); got != strconv.Itoa(len(a.Body)) || a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%q as %q: headers %v", body, contentType, a.Header)
			}
			var got deviceReply
			if a.Decode(&got); got.Reason != "none" {
				t.Errorf("%q: %s", body, a.Body)
			}
		}
	}
}

// TestUnknownDevicesAreRefusedBeyondTheRate sends the first reports of unknown devices faster than the fleet token may register them. A refused
// device is not registered and is asked to report again after a report period. A registered device is served as before.
func TestUnknownDevicesAreRefusedBeyondTheRate(t *testing.T) {
	t.Parallel()
	var elapsed atomic.Int64 // seconds of the dispatcher's clock
	b := startEmbedded(t, func(s *rig.Options) {
		s.Dispatcher.RegistrationRate = pace.Options{Rate: 1, Burst: 2}
		s.Dispatcher.Now = func() time.Time { return time.Unix(elapsed.Load(), 0) }
	})
	for _, device := range []string{"d-1", "d-2", "d-1"} {
		b.SendReport(device, `{}`).Expect(200)
	}
	refused := b.SendReport("d-3", `{}`)
	refused.ExpectProblem(503, "registration_rate")
	if after := refused.Header.Get("Retry-After"); after != "30" {
		t.Errorf("Retry-After: %s, want 30", after)
	}
	b.Call("GET", "/v1/devices/d-3", adminToken, nil).Expect(404)
	elapsed.Add(1)
	b.SendReport("d-3", `{}`).Expect(200)
	if events := string(b.Call("GET", "/v1/events?device=d-3", adminToken, nil).Body); !strings.Contains(events, "from=127.0.0.1") {
		t.Errorf("no address of the sender in %s", events)
	}
}

// TestRefusedReportsChangeNothing sends reports that are refused as a whole. Each contains a result that would end
// a running task. The task must still run.
func TestRefusedReportsChangeNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		g := b.ReportUntilGranted("d-1")
		good := fmt.Sprintf(`{"task":%d,"token":%d,"status":"succeeded"}`, g.ID, g.Token)
		deep := strings.Repeat("[", 14) + strings.Repeat("]", 14) // 3 + 14 levels, because the value is inside of output
		keys := make([]string, 65)
		for i := range keys {
			keys[i] = fmt.Sprintf(`"k%d":1`, i)
		}
		for name, test := range map[string]struct {
			body   string
			status int
			code   string
		}{
			"not JSON":             {`{"results":[` + good + `]`, 400, "invalid_json"},
			"rubbish":              {"\x00\xff\xfe", 400, "invalid_json"},
			"two values":           {`{"results":[` + good + `]}{}`, 400, "invalid_json"},
			"trailing comma":       {`{"results":[` + good + `,]}`, 400, "invalid_json"},
			"NaN":                  {`{"results":[` + good + `],"x":NaN}`, 400, "invalid_json"},
			"array":                {`[` + good + `]`, 400, "invalid_field"},
			"number":               {`7`, 400, "invalid_field"},
			"depth 17":             {`{"results":[` + good + `,{"output":` + deep + `}]}`, 400, "too_deep"},
			"depth in an unknown":  {`{"results":[` + good + `],"x":` + strings.Repeat(`{"a":`, 17) + `1` + strings.Repeat(`}`, 18), 400, "too_deep"},
			"id is a number":       {`{"id":7,"results":[` + good + `]}`, 400, "invalid_field"},
			"id of 129":            {`{"id":"` + strings.Repeat("x", 129) + `","results":[` + good + `]}`, 400, "invalid_field"},
			"results is an object": {`{"results":` + good + `}`, 400, "invalid_field"},
			"running is a string":  {`{"running":"x","results":[` + good + `]}`, 400, "invalid_field"},
			"accept is a number":   {`{"accept":1,"results":[` + good + `]}`, 400, "invalid_field"},
			"attributes an array":  {`{"attributes":[1],"results":[` + good + `]}`, 400, "invalid_field"},
			"65 attributes":        {`{"attributes":{` + strings.Join(keys, ",") + `},"results":[` + good + `]}`, 400, "attributes_too_large"},
			"8 KiB of attributes":  {`{"attributes":{"k":"` + strings.Repeat("x", 8<<10) + `"},"results":[` + good + `]}`, 400, "attributes_too_large"},
			"101 results":          {`{"results":[` + good + strings.Repeat(`,{}`, 100) + `]}`, 400, "too_many_results"},
			"101 running":          {`{"running":[{}` + strings.Repeat(`,{}`, 100) + `],"results":[` + good + `]}`, 400, "too_many_running"},
			"65537 bytes":          {`{"results":[` + good + `]}` + strings.Repeat(" ", 65537-len(`{"results":[`+good+`]}`)), 413, "body_too_large"},
			"a megabyte":           {strings.Repeat(" ", 1<<20), 413, "body_too_large"},
		} {
			if p := b.SendReport("d-1", test.body).ExpectProblem(test.status, test.code); p.ReportAfterMS != 30_000 {
				b.Errorf("%s: report_after_ms %d", name, p.ReportAfterMS)
			}
			b.Call("POST", "/v1/devices/d-1/report", fleetToken, chunkedReader{strings.NewReader(test.body)}).ExpectProblem(test.status, test.code)
			if got := b.Get(fmt.Sprintf("/v1/tasks/%d", g.ID)).Object(); got["state"] != "dispatched" {
				b.Fatalf("%s: a refused report ended the task: %v", name, got)
			}
		}
		if got := asObject(b.Get("/v1/devices/d-1").Object()["attributes"]); len(got) != 0 {
			b.Errorf("attributes of refused reports were kept: %v", got)
		}
		full := b.SendReport("d-1", `{"results":[`+good+`]}`+strings.Repeat(" ", 65536-len(`{"results":[`+good+`]}`)))
		var got deviceReply
		if full.Expect(200).Decode(&got); got.sortedOutcomes() != "recorded" {
			b.Errorf("65536 bytes are allowed: %s", full.Body)
		}
	})
}

// chunkedReader hides the length of a request body, so that the body is sent in chunks.
type chunkedReader struct{ io.Reader }

func TestBadEntriesSpoilNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1","d-2"]}`)
		mine, other := b.ReportUntilGranted("d-1"), b.ReportUntilGranted("d-2")
		entry := func(task, token, status, more string) string {
			return fmt.Sprintf(`{"task":%s,"token":%s,"status":%s%s}`, task, token, status, more)
		}
		task, token := strconv.FormatInt(mine.ID, 10), strconv.FormatInt(mine.Token, 10)
		for _, test := range []struct{ bad, want string }{
			{`7`, "rejected:not_an_object"},
			{`[]`, "rejected:not_an_object"},
			{`null`, "rejected:not_an_object"},
			{`{}`, "rejected:invalid_task"},
			{entry("-1", token, `"failed"`, ""), "rejected:invalid_task"},
			{entry("0", token, `"failed"`, ""), "rejected:invalid_task"},
			{entry("1.5", token, `"failed"`, ""), "rejected:invalid_task"},
			{entry("1e400", token, `"failed"`, ""), "rejected:invalid_task"},
			{entry("9007199254740992", token, `"failed"`, ""), "rejected:invalid_task"},
			{entry(`{"a":1}`, token, `"failed"`, ""), "rejected:invalid_task"},
			{entry(task, "-7", `"failed"`, ""), "rejected:invalid_token"},
			{entry(task, `"x"`, `"failed"`, ""), "rejected:invalid_token"},
			{entry(task, token, `"done"`, ""), "rejected:invalid_status"},
			{entry(task, token, `7`, ""), "rejected:invalid_status"},
			{entry(task, token, `"failed"`, `,"error":{"a":1}`), "rejected:invalid_error"},
			{entry(task, token, `"returned"`, `,"retry_after_ms":-1`), "rejected:invalid_retry_after"},
			{entry(task, token, `"returned"`, `,"retry_after_ms":"soon"`), "rejected:invalid_retry_after"},
			{entry(task, "9007199254740991", `"failed"`, ""), "unknown"},
			{entry("9007199254740991", token, `"failed"`, ""), "unknown"},
			{entry(strconv.FormatInt(other.ID, 10), strconv.FormatInt(other.Token, 10), `"succeeded"`, ""), "unknown"},
			{entry(task, strconv.FormatInt(other.Token, 10), `"failed"`, `,"output":"\u0000"`), "unknown"},
		} {
			body := `{"results":[` + test.bad + `,` + entry("9007199254740990", `"5"`, `"failed"`, "") + `],"accept":false}`
			var got deviceReply
			b.SendReport("d-1", body).Expect(200).Decode(&got)
			if want := strings.Join(slices.Sorted(slices.Values([]string{test.want, "unknown"})), " "); got.sortedOutcomes() != want {
				b.Errorf("%s: outcomes %q, want %q", test.bad, got.sortedOutcomes(), want)
			}
		}
		for _, g := range []rig.Grant{mine, other} {
			if got := b.Get(fmt.Sprintf("/v1/tasks/%d", g.ID)).Object(); got["state"] != "dispatched" || len(listField(got, "attempts")) != 0 {
				b.Errorf("a bad entry touched a task: %v", got)
			}
		}
		var got deviceReply
		b.SendReport("d-1", `{"running":[7,{"task":-1,"token":1},{"task":`+task+`,"token":9007199254740991},{"task":`+task+`,"token":`+token+`,"progress":"x"}]}`).Expect(200).Decode(&got)
		if len(got.Renewed) != 1 || got.Renewed[0].Task != mine.ID || len(got.Cancel) != 3 {
			b.Errorf("bad running entries kept a good one from renewal: %+v", got)
		}
		got = deviceReply{}
		b.SendReport("d-1", `{"results":[7,`+entry(task, token, `"succeeded"`, "")+`,{}]}`).Expect(200).Decode(&got)
		if want := "recorded rejected:invalid_task rejected:not_an_object"; got.sortedOutcomes() != want {
			b.Errorf("outcomes %q, want %q", got.sortedOutcomes(), want)
		}
	})
}

func TestDeviceTextIsRepaired(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":100}`)
		for i, test := range []struct{ sent, want string }{
			{`"a\u0000b"`, `"a` + "\ufffd" + `b"`},
			{"\"a\x00b\"", `"a` + "\ufffd" + `b"`},
			{`"\ud800x"`, `"` + "\ufffd" + `x"`},
			{`"\udc00\ud800"`, `"` + "\ufffd\ufffd" + `"`},
			{`"\ud83d\ude00"`, `"\ud83d\ude00"`},
			{"\"\xff\xc3\"", `"` + "\ufffd\ufffd" + `"`},
			{`"\\u0000"`, `"\\u0000"`},
			{`1e400`, `1e400`},
			{`-0.0e-999`, `-0.0e-999`},
			{`{"a\u0000":[{"b":"\udfff"}],"a":1,"a":2}`, `{"a` + "\ufffd" + `":[{"b":"` + "\ufffd" + `"}],"a":1,"a":2}`},
			{strings.Repeat("[", 13) + strings.Repeat("]", 13), strings.Repeat("[", 13) + strings.Repeat("]", 13)},
			{`"` + strings.Repeat("x", 32<<10-2) + `"`, `"` + strings.Repeat("x", 32<<10-2) + `"`},
		} {
			device := fmt.Sprintf("d-%d", i)
			b.CreateBatch(`{"pool":"p","devices":["` + device + `"]}`)
			g := b.ReportUntilGranted(device)
			more := `,"output":` + test.sent
			if test.sent[0] == '"' && len(test.sent) < 100 {
				more += `,"error":` + test.sent
			}
			report := g.Result("succeeded", more)
			if len(test.sent) < 100 {
				report = strings.Replace(report, "{", `{"attributes":{"k":`+test.sent+`},`, 1)
			}
			var got deviceReply
			b.SendReport(device, report).Expect(200).Decode(&got)
			if got.sortedOutcomes() != "recorded" {
				b.Errorf("%.80s: outcomes %q", test.sent, got.sortedOutcomes())
				continue
			}
			task := string(b.Get(fmt.Sprintf("/v1/tasks/%d", g.ID)).Expect(200).Body)
			if !strings.Contains(task, `"output":`+test.want+`,`) {
				b.Errorf("%.80q came out as %.300s", test.sent, task)
			}
			if strings.Contains(more, `"error"`) && strings.Contains(task, `"error":""`) {
				b.Errorf("%.80q: the error is lost: %.300s", test.sent, task)
			}
			if attributes := string(b.Get("/v1/devices/" + device).Expect(200).Body); len(test.sent) < 100 && !strings.Contains(attributes, `"k":`) {
				b.Errorf("%.80q: the attribute is lost: %.300s", test.sent, attributes)
			}
		}
	})
}

func TestOversizeOutputIsDroppedAndItsStatusKept(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(`{"pool":"p","devices":["d"]}`)
	g := b.ReportUntilGranted("d")
	var got deviceReply
	b.SendReport("d", g.Result("succeeded", `,"output":"`+strings.Repeat("x", 32<<10)+`"`)).Expect(200).Decode(&got)
	task := b.Get(fmt.Sprintf("/v1/tasks/%d", g.ID)).Object()
	if got.sortedOutcomes() != "recorded:output_dropped" || task["state"] != "succeeded" || task["output"] != nil {
		t.Errorf("%q, task %v", got.sortedOutcomes(), task)
	}
	attempt, _ := listField(task, "attempts")[0].(map[string]any)
	if task["output_dropped"] != true || attempt["output_dropped"] != true {
		t.Errorf("the task does not tell that its output was dropped: %v", task)
	}
	if kinds := b.deviceEventKinds("d"); !slices.Contains(kinds, "result.output_dropped") {
		t.Errorf("no event of it: %v", kinds)
	}
}

func TestReportPathNamesOneDevice(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for id, code := range badDeviceIDs() {
		a := b.SendReport(id, `{}`)
		if p := a.ExpectProblem(400, code); code == "invalid_device_id" && p.ReportAfterMS == 0 {
			t.Errorf("%s: no report_after_ms", a.Line)
		}
	}
	for _, path := range []string{"//v1/devices/d/report", "/v1//devices/d/report", "/v1/devices//report", "/v1/devices/../devices/d/report", "/v1/./devices/d/report"} {
		b.Call("POST", path, fleetToken, `{}`).ExpectProblem(400, "invalid_path")
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE"} {
		a := b.Call(method, "/v1/devices/d/report", fleetToken, nil)
		if a.Status != 405 || a.Header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, a.Status, a.Header.Get("Allow"))
		}
	}
	if found := listField(b.Get("/v1/devices").Object(), "devices"); len(found) != 0 {
		t.Errorf("%d devices after refusals, want none", len(found))
	}
	b.SendReport("a%3Ab", `{}`).Expect(200)
	b.SendReport("a:b", `{}`).Expect(200)
	if found := listField(b.Get("/v1/devices").Object(), "devices"); len(found) != 1 {
		t.Errorf("%d devices, want a:b and a%%3Ab to be one", len(found))
	}
}

func TestReportNeedsTheRightToken(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		g := b.ReportUntilGranted("d-1")
		own, theirs := b.createDevice("own"), b.createDevice("theirs")
		b.Call("POST", "/v1/devices/own/report", own, `{}`).Expect(200)
		for name, test := range map[string]struct {
			device, token string
			status        int
			code          string
		}{
			"none":                    {"d-1", "", 401, "unauthenticated"},
			"garbage":                 {"d-1", "garbage", 401, "unauthenticated"},
			"another device's":        {"d-1", theirs, 403, "forbidden"},
			"a verifier's":            {"d-1", b.createToken("verifier"), 403, "forbidden"},
			"a viewer's":              {"d-1", b.createToken("viewer"), 403, "forbidden"},
			"an operator's":           {"d-1", b.createToken("operator"), 403, "forbidden"},
			"an admin's":              {"d-1", b.createToken("admin"), 403, "forbidden"},
			"a caller's":              {"d-1", b.createCallerToken(`"pools":["*"],"limit_sets":["*"]`), 403, "forbidden"},
			"fleet after the own one": {"own", fleetToken, 403, "forbidden"},
			"own of another":          {"theirs", own, 403, "forbidden"},
		} {
			p := b.Call("POST", "/v1/devices/"+test.device+"/report", test.token, g.Result("succeeded", "")).ExpectProblem(test.status, test.code)
			if p.ReportAfterMS != 600_000 {
				b.Errorf("%s: report_after_ms %d", name, p.ReportAfterMS)
			}
		}
		var got deviceReply
		b.Call("POST", "/v1/devices/theirs/report", theirs, g.Result("succeeded", "")).Expect(200).Decode(&got)
		if got.sortedOutcomes() != "unknown" {
			b.Errorf("another device's result: %q", got.sortedOutcomes())
		}
		if got := b.Get(fmt.Sprintf("/v1/tasks/%d", g.ID)).Object(); got["state"] != "dispatched" {
			b.Errorf("somebody else ended the task: %v", got)
		}
	})
}

func TestReportOfTwoTokensIsRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, b.URL+"/v1/devices/d/report", strings.NewReader(`{}`))
	request.Header["Authorization"] = []string{"Bearer " + fleetToken, "Bearer " + fleetToken}
	b.DoRequest(request).ExpectProblem(401, "unauthenticated")
}

func TestEnrolmentGivesATokenThatWorks(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.FleetMode = credentials.FleetEnroll })
	credential := func() string {
		token, _ := b.SendReport("d", `{}`).Expect(200).Object()["credential"].(string)
		return token
	}
	lost, kept := credential(), credential()
	b.Call("POST", "/v1/devices/d/report", lost, `{}`).ExpectProblem(401, "unauthenticated")
	if again := b.Call("POST", "/v1/devices/d/report", kept, `{}`).Expect(200); again.Object()["credential"] != nil {
		t.Errorf("the token is shown again: %s", again.Body)
	}
	b.SendReport("d", `{}`).ExpectProblem(403, "forbidden")
}

// TestBodyThatBreaksOffIsToBeSentAgain checks a report whose body breaks off because of a network failure. The
// response must not make the device discard its results, as a status 400 would.
func TestBodyThatBreaksOffIsToBeSentAgain(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(b.URL, "http://"))
	b.Must(err)
	defer conn.Close()
	text := fmt.Sprintf("POST /v1/devices/d/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{\"results\":[", fleetToken)
	_, err = io.WriteString(conn, text)
	must.Succeed(t, err)
	if half, ok := conn.(*net.TCPConn); !ok || half.CloseWrite() != nil {
		t.Fatal("the connection cannot be half closed")
	}
	answered, _ := io.ReadAll(conn)
	if got := string(answered); !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, `"body_incomplete"`) || !strings.Contains(got, `"report_after_ms":30000`) {
		t.Errorf("answered: %s", got)
	}
}

func TestRefusalsAreJittered(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.Jitter = func() float64 { return 0 } })
	if p := b.SendReport("d", `{`).ExpectProblem(400, "invalid_json"); p.ReportAfterMS != 24_000 {
		t.Errorf("invalid: report_after_ms %d", p.ReportAfterMS)
	}
	if p := b.Call("POST", "/v1/devices/d/report", "garbage", `{}`).ExpectProblem(401, "unauthenticated"); p.ReportAfterMS != 480_000 {
		t.Errorf("unauthenticated: report_after_ms %d", p.ReportAfterMS)
	}
	b.Must(b.store.Close())
	a := b.SendReport("d", `{}`)
	if p := a.ExpectProblem(503, "unavailable"); p.ReportAfterMS != 1500 || a.Header.Get("Retry-After") != "2" {
		t.Errorf("unavailable: report_after_ms %d, Retry-After %q", p.ReportAfterMS, a.Header.Get("Retry-After"))
	}
}

func TestReportLimitsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	got := []int{devices.MaxBody, devices.MaxDepth, devices.MaxResults, devices.MaxRunning, devices.MaxAttributes, devices.MaxAttributeKeys, devices.MaxOutput}
	if want := []int{65536, 16, 100, 100, 8192, 64, 32768}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("limits %v, want %v", got, want)
	}
}
