package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// duplicateBatches returns batches in JSON, CSV and NDJSON. Each has two pairs of equal tasks, which are written differently. The field again is
// the position of the first task that repeats another task. The field first is the position of the repeated task.
func duplicateBatches() []struct{ contentType, body, again, first string } {
	return []struct{ contentType, body, again, first string }{
		{"application/json", `{"pool":"p","kind":"k","payload":{"s":1},"duplicates":"%s","tasks":[{"device":"a"},{"device":"b"},
			{"device":"a","payload":{"s":2}},{"device":"b","payload":{"s": 1}},{"device":"a","payload":{"s":2}}]}`, "tasks[3]", "tasks[1]"},
		{csvType, "device,s:json\na,\nb,\na,2\nb, 1\na,2\n", "line 5", "line 3"},
		{ndjsonType, `{"device":"a"}` + "\n\n" + `{"device":"b"}` + "\n" + `{"device":"a","payload":{"s":2}}` + "\n" +
			`{"device":"b","payload":{"s": 1},"priority":4}` + "\n" + `{"device":"a","payload":{"s":2}}` + "\n", "line 5", "line 3"},
	}
}

// postDuplicates creates a batch of duplicateBatches. duplicates is the value of the field of this name, and query has further parameters.
func (b *testAPI) postDuplicates(contentType, body, duplicates, query string) rig.Response {
	b.Helper()
	if contentType == "application/json" {
		return b.sendWithType("POST", "/v1/batches?"+query, contentType, fmt.Sprintf(body, duplicates))
	}
	return b.sendWithType("POST", "/v1/batches?pool=p&kind=k&payload=%7B%22s%22:1%7D&duplicates="+duplicates+"&"+query, contentType, body)
}

func TestDuplicatesAreAllowedSkippedOrRefused(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		var skipped []string
		for _, form := range duplicateBatches() {
			queue := func(duplicates, query string, status int) map[string]any {
				b.Helper()
				made := b.postDuplicates(form.contentType, form.body, duplicates, query).Expect(status).Object()
				if duplicates == "skip" && query == "" {
					skipped = append(skipped, fmt.Sprint(made["id"]))
				}
				delete(made, "id")
				if unknown := asObject(made["unknown"]); unknown["tasks"] != made["tasks"] || unknown["first"] != "a" {
					b.Errorf("nobody registered the devices, and %v are unknown", unknown)
				}
				delete(made, "unknown")
				return made
			}
			for _, query := range []string{"", "dry_run=true"} {
				status := map[string]int{"": 201, "dry_run=true": 200}[query]
				if diff := cmp.Diff(map[string]any{"tasks": 5.0}, queue("allow", query, status)); diff != "" {
					b.Errorf("%s allow %s: %s", form.contentType, query, diff)
				}
				if diff := cmp.Diff(map[string]any{"tasks": 3.0, "skipped": 2.0}, queue("skip", query, status)); diff != "" {
					b.Errorf("%s skip %s: %s", form.contentType, query, diff)
				}
				before := len(b.readPages("/v1/batches", "batches", "id"))
				b.postDuplicates(form.contentType, form.body, "refuse", query).ExpectProblem(422, "duplicate_task", form.again+":", "as "+form.first+":", "(b)")
				if now := len(b.readPages("/v1/batches", "batches", "id")); now != before {
					b.Errorf("%s: a refused batch is there", form.contentType)
				}
			}
			b.postDuplicates(form.contentType, form.body, "forbid", "").ExpectProblem(422, "invalid_field", "duplicates")
		}
		for _, batch := range skipped {
			if diff := cmp.Diff(map[string]any{"a": map[string]any{"s": 2.0}, "b": map[string]any{"s": 1.0}}, b.taskPayloads("&batch="+batch)); diff != "" {
				b.Errorf("batch %s: %s", batch, diff)
			}
			if shown := b.Get("/v1/batches/" + batch).Object(); shown["total"] != 3.0 {
				b.Errorf("batch %s: %v", batch, shown["total"])
			}
		}
		if events := string(b.Get("/v1/events?kind=batch.created&batch=" + skipped[0]).Expect(200).Body); !strings.Contains(events, "tasks=3 skipped=2") {
			b.Errorf("the log does not say what was skipped: %s", events)
		}
		// Another batch may have the same tasks: duplicates are only searched within one batch.
		b.CreateBatch(`{"pool":"p","duplicates":"refuse","devices":["a","b"]}`)
		b.CreateBatch(`{"pool":"p","duplicates":"refuse","devices":["a","b"]}`)
		b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","duplicates":"refuse","devices":["a","b","a"]}`).
			ExpectProblem(422, "duplicate_task", "devices[2]", "devices[0]")
	})
}

func TestASkippedDuplicateIsAnsweredTheSameAgain(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		const body = `{"pool":"p","duplicates":"skip","devices":["a","b","a"]}`
		first := b.postWithKey("/v1/batches", adminToken, "k", body).Expect(201)
		again := b.postWithKey("/v1/batches", adminToken, "k", body).Expect(201)
		if string(first.Body) != string(again.Body) || first.Object()["skipped"] != 1.0 || again.Header.Get("Idempotency-Replayed") != "true" {
			b.Errorf("%s, then %s", first.Body, again.Body)
		}
	})
}

// TestALongStreamOfDuplicates sends a long stream of tasks whose second half repeats the tasks of its first half. With skip, half of the
// tasks must be skipped. With refuse, the error must name the first repeated line.
func TestALongStreamOfDuplicates(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.PutPool("p", `{"capacity":60}`)
	rows := longBatchSize()
	for _, form := range []struct{ contentType, head, line string }{
		{csvType, "device,n:json\n", "d-%d,%d\n"},
		{ndjsonType, "", `{"device":"d-%d","payload":{"n":%d}}` + "\n"},
	} {
		var body strings.Builder
		body.WriteString(form.head)
		for i := range rows {
			fmt.Fprintf(&body, form.line, i%(rows/2), 7)
		}
		made := b.sendWithType(http.MethodPost, "/v1/batches?pool=p&duplicates=skip", form.contentType, body.String()).Expect(201).Object()
		if made["tasks"] != float64(rows/2) || made["skipped"] != float64(rows/2) {
			b.Errorf("%s: %v", form.contentType, made)
		}
		first := rows/2 + 1 + strings.Count(form.head, "\n")
		b.sendWithType(http.MethodPost, "/v1/batches?pool=p&duplicates=refuse", form.contentType, body.String()).ExpectProblem(422, "duplicate_task", fmt.Sprintf("line %d:", first), "(d-0)")
	}
}

// TestStreamsTakeLimits checks that a streamed batch can have policies and other settings that are not plain text.
func TestStreamsTakeLimits(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		window := `{"cron":"0 1 * * *","duration":"4h0m0s","timezone":"UTC"}`
		made := b.CreateBatch(`{"pool":"p","devices":["d"],"limits":[` + perAccountPolicy + `],"abort":{"failure":0.2,"min":3},"windows":[` + window + `]}`)
		want := b.Get(fmt.Sprintf("/v1/batches/%d", made)).Object()
		if len(listField(want, "limits")) != 1 {
			b.Fatalf("no limits: %v", want)
		}
		for contentType, body := range map[string]string{csvType: "device\nd\n", ndjsonType: `{"device":"d"}`} {
			made := b.sendWithType("POST", "/v1/batches?pool=p&limits="+url.QueryEscape(`[`+perAccountPolicy+`]`)+"&abort="+url.QueryEscape(`{"failure":0.2,"min":3}`)+"&windows="+url.QueryEscape("["+window+"]"), contentType, body).Expect(201).Object()
			got := b.Get(fmt.Sprintf("/v1/batches/%v", made["id"])).Object()
			for _, field := range []string{"limits", "abort", "windows"} {
				if diff := cmp.Diff(want[field], got[field]); diff != "" {
					b.Errorf("%s %s: %s", contentType, field, diff)
				}
			}
			for limits, says := range map[string]string{
				`[` + strings.Replace(perAccountPolicy, `"max":1`, `"max":0`, 1) + `]`:         "limits[0].windows[0].max: must be between 1 and 100000",
				`[` + strings.Replace(perAccountPolicy, `"sliding"`, `"leaky"`, 1) + `]`:       "algorithm",
				`[` + strings.Replace(perAccountPolicy, `"per":`, `"burst":1,"per":`, 1) + `]`: "burst",
				`per-account`: "limits",
			} {
				r := b.sendWithType("POST", "/v1/batches?pool=p&limits="+url.QueryEscape(limits), contentType, body)
				if r.Status != 422 && r.Status != 400 || !strings.Contains(string(r.Body), says) {
					b.Errorf("%s: %d %s, want %q", limits, r.Status, r.Body, says)
				}
			}
		}
	})
}
