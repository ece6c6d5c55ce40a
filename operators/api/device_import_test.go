package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// importDevices sends a request that imports devices. If idempotencyKey is empty, it sends no header Idempotency-Key.
func (b *testAPI) importDevices(query, contentType, acceptHeader, idempotencyKey, body string) rig.Response {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.URL+"/v1/devices"+query, strings.NewReader(body))
	b.Must(err)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	for name, value := range map[string]string{"Accept": acceptHeader, "Idempotency-Key": idempotencyKey} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	return b.DoRequest(request)
}

// tokensByDevice returns the tokens in the response to an import, by the id of the device. A device that got no new
// token has an empty string.
func tokensByDevice(a rig.Response) map[string]string {
	a.Helper()
	tokens := map[string]string{}
	for i, row := range a.CSVRows() {
		if i > 0 {
			tokens[row[0]] = row[1]
		}
	}
	return tokens
}

func TestDevicesAreImported(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
	runOnBothBackends(t, func(b *testAPI) {
		csv := "\ufeffdevice,area,the model\r\nar:7,330100,\"x, \"\"1\"\"\"\r\nar-8,,\r\n"
		made := b.importDevices("", "text/csv; charset=utf-8", "", "", csv).Expect(201)
		tokens := tokensByDevice(made)
		if rows := made.CSVRows(); made.Header.Get("Content-Type") != csvType || len(rows) != 3 || !cmp.Equal(rows[0], []string{"device", "token"}) || rows[1][0] != "ar:7" || rows[2][0] != "ar-8" {
			b.Fatalf("%s", made.Body)
		}
		for id, tags := range map[string]map[string]any{"ar:7": {"area": "330100", "the model": `x, "1"`}, "ar-8": {}} {
			if got := asObject(b.Get("/v1/devices/" + id).Expect(200).Object()["tags"]); !cmp.Equal(tags, got) || !secret.MatchString(tokens[id]) {
				b.Errorf("%s: tags %v, token %q", id, got, tokens[id])
			}
			b.Call("POST", "/v1/devices/"+id+"/report", tokens[id], `{}`).Expect(200)
		}
		if tokens["ar:7"] == tokens["ar-8"] {
			b.Error("two devices have the same token")
		}
		ndjson := "{\"id\":\"n-1\",\"tags\":{\"area\":\"1\"}}\n\n{\"id\":\"n-2\",\"tags\":null}"
		made = b.importDevices("", ndjsonType, "", "", ndjson).Expect(201)
		if lines := strings.Split(strings.TrimSpace(string(made.Body)), "\n"); made.Header.Get("Content-Type") != ndjsonType || len(lines) != 2 {
			b.Fatalf("%s", made.Body)
		}
		var second struct{ ID, Token string }
		if err := json.Unmarshal(bytes.Split(made.Body, []byte("\n"))[1], &second); err != nil || second.ID != "n-2" || !secret.MatchString(second.Token) {
			b.Errorf("%+v, %v", second, err)
		}
		b.Call("POST", "/v1/devices/n-2/report", second.Token, `{}`).Expect(200)
		if made = b.importDevices("", ndjsonType, csvType, "", `{"id":"n-3"}`).Expect(201); !strings.HasPrefix(string(made.Body), "device,token\nn-3,") {
			b.Errorf("%s", made.Body)
		}
		var imports []any
		for _, event := range listField(b.Get("/v1/events?kind=devices.imported").Expect(200).Object(), "events") {
			imports = append(imports, asObject(event)["detail"])
		}
		if want := []any{"created=1 existing=0", "created=2 existing=0", "created=2 existing=0"}; !cmp.Equal(want, imports) {
			b.Errorf("events %v, want %v", imports, want)
		}
		if found := listField(b.Get("/v1/devices").Object(), "devices"); len(found) != 5 {
			b.Errorf("%d devices, want 5", len(found))
		}
	})
}

func TestABadLineRefusesTheImport(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		long := strings.Repeat("x", 130<<10)
		b.createDevice("there")
		for _, test := range []struct {
			contentType, body string
			names             []string
		}{
			{csvType, "", []string{"line 1", "header", "tags"}},
			{csvType, "device,area\n", []string{"line 2", "no device"}},
			{csvType, "id,area\nd,1\n", []string{"line 1", "device"}},
			{csvType, "device,a,a\nd,1,2\n", []string{"line 1", `"a"`}},
			{csvType, "device,a:json\nd,1\n", []string{"line 1", ":json"}},
			{csvType, "device,a:b\nd,1\n", []string{"line 2", `"a:b"`}},
			{csvType, "device,a\nd-1,\"x\ny\"\nd/2,1\n", []string{"line 4", "may only contain"}},
			{csvType, "device,a\nd-1,x\n,y\n", []string{"line 3", "device", "empty"}},
			{csvType, "device\nd-1\nd-2\nd-1\n", []string{"line 4", "d-1", "line 2"}},
			{csvType, "device,a\nd-1,x\nthere,y\n", []string{"line 3", "there", "exists", "existing=skip", "existing=rotate"}},
			{csvType, "device,a\nd-1,\"" + long[:9<<10] + "\"\n", []string{"line 2", "8192"}},
			{csvType, "device,a\nd-1,\"" + long + long + "\n", []string{"line 2", "longer"}},
			{csvType, "device,a\nd-1,\xff\n", []string{"line 2", "UTF-8"}},
			{ndjsonType, "\n\n", []string{"line 2", "no device"}},
			{ndjsonType, "{\"id\":\"d\"}\n{\"device\":\"e\"}", []string{"line 2", "device", "id, tags and profile"}},
			{ndjsonType, "{\"id\":\"d\",\"tags\":{\"a\":1}}", []string{"line 1", "tags"}},
			{ndjsonType, "{\"id\":\"d\",\"tags\":{\"a\":\"\\u0000\"}}", []string{"line 1", "U+0000"}},
			{ndjsonType, "{\"id\":\"d\"}\n\n{\"id\":\"there\"}", []string{"line 3", "there"}},
		} {
			b.importDevices("", test.contentType, "", "", test.body).ExpectProblem(422, "invalid_line", test.names...)
		}
		b.importDevices("?existing=perhaps", csvType, "", "", "device\nd\n").ExpectProblem(422, "invalid_field", "existing")
		b.importDevices("?exsting=skip", csvType, "", "", "device\nd\n").ExpectProblem(400, "unknown_field", "exsting")
		var many bytes.Buffer
		many.WriteString("device\n")
		for i := range 100_001 {
			fmt.Fprintln(&many, "m-", i)
		}
		b.importDevices("", csvType, "", "", strings.ReplaceAll(many.String(), " ", "")).ExpectProblem(422, "invalid_line", "line 100002", "at most 100000")
		if found := listField(b.Get("/v1/devices").Object(), "devices"); len(found) != 1 {
			b.Errorf("%d devices after refusals, want 1", len(found))
		}
	})
}

func TestImportOfDevicesThatExist(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		old := b.createDevice("d-1")
		skipped := tokensByDevice(b.importDevices("?existing=skip", csvType, "", "", "device,area\nd-1,1\nd-2,2\n").Expect(201))
		if skipped["d-1"] != "" || len(skipped["d-2"]) != 43 {
			b.Errorf("skipped: %v", skipped)
		}
		rotated := tokensByDevice(b.importDevices("?existing=rotate", csvType, "", "", "device,area\nd-1,1\nd-2,3\nd-3,3\n").Expect(201))
		for id, token := range rotated {
			b.Call("POST", "/v1/devices/"+id+"/report", token, `{}`).Expect(200)
		}
		for id, token := range map[string]string{"d-1": old, "d-2": skipped["d-2"]} { // old tokens stay valid for a day
			b.Call("POST", "/v1/devices/"+id+"/report", token, `{}`).Expect(200)
		}
		for id, area := range map[string]any{"d-1": nil, "d-2": "2", "d-3": "3"} {
			if tags := asObject(b.Get("/v1/devices/" + id).Object()["tags"]); tags["area"] != area {
				b.Errorf("%s: tags %v, want area %v", id, tags, area)
			}
		}
	})
}

// TestImportIsReplayedWithoutSecrets checks an import that is sent again with the same key: it changes nothing and
// returns no tokens. A client that lost the first response gets new tokens by a rotation.
func TestImportIsReplayedWithoutSecrets(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		csv := "device\nd-1\nd-2\n"
		first := b.importDevices("", csvType, "", "k1", csv).Expect(201)
		again := b.importDevices("", csvType, "", "k1", csv).Expect(201)
		if diff := cmp.Diff(map[string]string{"d-1": "", "d-2": ""}, tokensByDevice(again)); diff != "" || again.Header.Get("Idempotency-Replayed") != "true" || first.Header.Get("Idempotency-Replayed") != "" {
			b.Errorf("replayed %q: %s", again.Header.Get("Idempotency-Replayed"), diff)
		}
		b.importDevices("", csvType, "", "k1", csv+"d-3\n").ExpectProblem(422, "idempotency_key_reused")
		b.importDevices("?existing=skip", csvType, "", "k1", csv).ExpectProblem(422, "idempotency_key_reused")
		b.Get("/v1/devices/d-3").ExpectProblem(404, "not_found")
		rotated := tokensByDevice(b.importDevices("?existing=rotate", csvType, "", "k2", csv).Expect(201))
		b.Call("POST", "/v1/devices/d-1/report", rotated["d-1"], `{}`).Expect(200)
	})
}

// TestImportWithoutTheBroker imports devices while the broker cannot be reached. A new device needs an account at the
// broker, so it is not imported. A line of an existing device must succeed unless it asks for a new token. Tokens of
// devices with accounts at a broker can only be rotated one by one.
func TestImportWithoutTheBroker(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.Accounts = brokenAccounts{} })
	b.store.RecordAccountChanges()
	b.SendReport("old", `{}`).Expect(200)
	b.importDevices("", csvType, "", "", "device\nd\n").ExpectProblem(503, "broker_unavailable")
	b.Get("/v1/devices/d").ExpectProblem(404, "not_found")
	b.importDevices("", csvType, "", "", "device\nd\nold\n").ExpectProblem(422, "invalid_line", "line 3", "old", "exists")
	b.importDevices("?existing=rotate", csvType, "", "", "device\nd\nold\n").ExpectProblem(409, "one_by_one", "line 3", "old", "one by one")
	if tokens := tokensByDevice(b.importDevices("?existing=skip", csvType, "", "", "device\nold\n").Expect(201)); tokens["old"] != "" {
		b.Errorf("%v", tokens)
	}
}

func TestAnImportMakesSoManyAccounts(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.Accounts = brokenAccounts{} })
	b.store.RecordAccountChanges()
	var many bytes.Buffer
	many.WriteString("device\n")
	for i := range 1001 {
		fmt.Fprintf(&many, "m-%d\n", i)
	}
	b.importDevices("", csvType, "", "", many.String()).ExpectProblem(422, "invalid_line", "line 1002", "at most 1000")
}
