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
)

// importing sends an import. If key is empty, it sends no Idempotency-Key.
func (b *bench) importing(query, contentType, accept, key, body string) answer {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+"/v1/devices"+query, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", contentType)
	for name, value := range map[string]string{"Accept": accept, "Idempotency-Key": key} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	return b.do(request)
}

// tokensOf returns the tokens in the response to an import, by device. A device without a new token has an empty string.
func (a answer) tokensOf() map[string]string {
	a.t.Helper()
	tokens := map[string]string{}
	for i, row := range a.table() {
		if i > 0 {
			tokens[row[0]] = row[1]
		}
	}
	return tokens
}

func TestDevicesAreImported(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
	forBackends(t, func(b *bench) {
		csv := "\ufeffdevice,area,the model\r\nar:7,330100,\"x, \"\"1\"\"\"\r\nar-8,,\r\n"
		made := b.importing("", "text/csv; charset=utf-8", "", "", csv).must(201)
		tokens := made.tokensOf()
		if rows := made.table(); made.header.Get("Content-Type") != csvType || len(rows) != 3 || !cmp.Equal(rows[0], []string{"device", "token"}) || rows[1][0] != "ar:7" || rows[2][0] != "ar-8" {
			b.Fatalf("%s", made.body)
		}
		for id, tags := range map[string]map[string]any{"ar:7": {"area": "330100", "the model": `x, "1"`}, "ar-8": {}} {
			if got := object(b.get("/v1/devices/" + id).must(200).fields()["tags"]); !cmp.Equal(tags, got) || !secret.MatchString(tokens[id]) {
				b.Errorf("%s: tags %v, token %q", id, got, tokens[id])
			}
			b.call("POST", "/v1/devices/"+id+"/report", tokens[id], `{}`).must(200)
		}
		if tokens["ar:7"] == tokens["ar-8"] {
			b.Error("two devices have the same token")
		}
		ndjson := "{\"id\":\"n-1\",\"tags\":{\"area\":\"1\"}}\n\n{\"id\":\"n-2\",\"tags\":null}"
		made = b.importing("", ndjsonType, "", "", ndjson).must(201)
		if lines := strings.Split(strings.TrimSpace(string(made.body)), "\n"); made.header.Get("Content-Type") != ndjsonType || len(lines) != 2 {
			b.Fatalf("%s", made.body)
		}
		var second struct{ ID, Token string }
		if err := json.Unmarshal(bytes.Split(made.body, []byte("\n"))[1], &second); err != nil || second.ID != "n-2" || !secret.MatchString(second.Token) {
			b.Errorf("%+v, %v", second, err)
		}
		b.call("POST", "/v1/devices/n-2/report", second.Token, `{}`).must(200)
		if made = b.importing("", ndjsonType, csvType, "", `{"id":"n-3"}`).must(201); !strings.HasPrefix(string(made.body), "device,token\nn-3,") {
			b.Errorf("%s", made.body)
		}
		if kinds := b.kinds("n-1"); !cmp.Equal(kinds, []string{"device.created"}) {
			b.Errorf("events %v", kinds)
		}
		if found := list(b.get("/v1/devices").fields(), "devices"); len(found) != 5 {
			b.Errorf("%d devices, want 5", len(found))
		}
	})
}

func TestABadLineRefusesTheImport(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		long := strings.Repeat("x", 130<<10)
		b.device("there")
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
			b.importing("", test.contentType, "", "", test.body).problem(422, "invalid_line").names(b.T, test.names...)
		}
		b.importing("?existing=perhaps", csvType, "", "", "device\nd\n").problem(422, "invalid_field").names(b.T, "existing")
		b.importing("?exsting=skip", csvType, "", "", "device\nd\n").problem(400, "unknown_field").names(b.T, "exsting")
		var many bytes.Buffer
		many.WriteString("device\n")
		for i := range 100_001 {
			fmt.Fprintln(&many, "m-", i)
		}
		b.importing("", csvType, "", "", strings.ReplaceAll(many.String(), " ", "")).problem(422, "invalid_line").names(b.T, "line 100002", "at most 100000")
		if found := list(b.get("/v1/devices").fields(), "devices"); len(found) != 1 {
			b.Errorf("%d devices after refusals, want 1", len(found))
		}
	})
}

func TestImportOfDevicesThatExist(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		old := b.device("d-1")
		skipped := b.importing("?existing=skip", csvType, "", "", "device,area\nd-1,1\nd-2,2\n").must(201).tokensOf()
		if skipped["d-1"] != "" || len(skipped["d-2"]) != 43 {
			b.Errorf("skipped: %v", skipped)
		}
		rotated := b.importing("?existing=rotate", csvType, "", "", "device,area\nd-1,1\nd-2,3\nd-3,3\n").must(201).tokensOf()
		for id, token := range rotated {
			b.call("POST", "/v1/devices/"+id+"/report", token, `{}`).must(200)
		}
		for id, token := range map[string]string{"d-1": old, "d-2": skipped["d-2"]} { // old tokens stay valid for a day
			b.call("POST", "/v1/devices/"+id+"/report", token, `{}`).must(200)
		}
		for id, area := range map[string]any{"d-1": nil, "d-2": "2", "d-3": "3"} {
			if tags := object(b.get("/v1/devices/" + id).fields()["tags"]); tags["area"] != area {
				b.Errorf("%s: tags %v, want area %v", id, tags, area)
			}
		}
	})
}

// TestImportIsReplayedWithoutSecrets checks that a repeated request changes nothing and returns no tokens, and that a
// rotation gives new tokens to a client that lost the response.
func TestImportIsReplayedWithoutSecrets(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		csv := "device\nd-1\nd-2\n"
		first := b.importing("", csvType, "", "k1", csv).must(201)
		again := b.importing("", csvType, "", "k1", csv).must(201)
		if diff := cmp.Diff(map[string]string{"d-1": "", "d-2": ""}, again.tokensOf()); diff != "" || again.header.Get("Idempotency-Replayed") != "true" || first.header.Get("Idempotency-Replayed") != "" {
			b.Errorf("replayed %q: %s", again.header.Get("Idempotency-Replayed"), diff)
		}
		b.importing("", csvType, "", "k1", csv+"d-3\n").problem(422, "idempotency_key_reused")
		b.importing("?existing=skip", csvType, "", "k1", csv).problem(422, "idempotency_key_reused")
		b.get("/v1/devices/d-3").problem(404, "not_found")
		rotated := b.importing("?existing=rotate", csvType, "", "k2", csv).must(201).tokensOf()
		b.call("POST", "/v1/devices/d-1/report", rotated["d-1"], `{}`).must(200)
	})
}

// TestImportWithoutTheBroker checks that no import is done while the broker cannot be reached. Lines of existing devices
// need the broker only for a new token, which is rotated by another operation.
func TestImportWithoutTheBroker(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(s *setup) { s.dispatcher.Accounts = brokenAccounts{} })
	b.store.NoteAccounts()
	b.report("old", `{}`).must(200)
	b.importing("", csvType, "", "", "device\nd\n").problem(503, "broker_unavailable")
	b.get("/v1/devices/d").problem(404, "not_found")
	b.importing("", csvType, "", "", "device\nd\nold\n").problem(422, "invalid_line").names(b.T, "line 3", "old", "exists")
	b.importing("?existing=rotate", csvType, "", "", "device\nd\nold\n").problem(409, "one_by_one").names(b.T, "line 3", "old", "one by one")
	if tokens := b.importing("?existing=skip", csvType, "", "", "device\nold\n").must(201).tokensOf(); tokens["old"] != "" {
		b.Errorf("%v", tokens)
	}
}

func TestAnImportMakesSoManyAccounts(t *testing.T) {
	t.Parallel()
	b := embedded(t, func(s *setup) { s.dispatcher.Accounts = brokenAccounts{} })
	b.store.NoteAccounts()
	var many bytes.Buffer
	many.WriteString("device\n")
	for i := range 1001 {
		fmt.Fprintf(&many, "m-%d\n", i)
	}
	b.importing("", csvType, "", "", many.String()).problem(422, "invalid_line").names(b.T, "line 1002", "at most 1000")
}
