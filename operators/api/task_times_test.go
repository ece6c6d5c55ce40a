package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Tasks of a batch have times and priorities of their own. This works in every form in which a batch can be sent.
func TestTasksHaveTheirOwnTimes(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		const begins, ends = "2098-01-01T02:00:00+02:00", "2098-02-01T00:00:00.5Z"
		entry := fmt.Sprintf(`{"device":"d-1","priority":7,"payload":{":x":"y"},"not_before":%q,"not_after":%q}`, begins, ends)
		csv := "device,a,:priority,:not_after,:not_before\nd-1,x,7," + ends + "," + begins + "\nd-2,,,,\n"
		long := `{"pool":"p","name":"` + strings.Repeat("n", 150) + `","payload":"` + strings.Repeat("p", 30<<10) + `","tasks":[` + entry + strings.Repeat(`,{"device":"d-2","payload":null}`, 1500) + `]}`
		for form, post := range map[string]func(){
			"JSON": func() { b.CreateBatch(`{"pool":"p","tasks":[` + entry + `,{"device":"d-2","not_before":null}]}`) },
			"long": func() { b.sendWithType("POST", "/v1/batches", "application/json", long).Expect(201) },
			"NDJSON": func() {
				b.sendWithType("POST", "/v1/batches?pool=p", ndjsonType, entry+"\n"+`{"device":"d-2"}`).Expect(201)
			},
			"CSV": func() { b.sendWithType("POST", "/v1/batches?pool=p", csvType, csv).Expect(201) },
		} {
			post()
			tasks := listField(b.Get("/v1/tasks?device=d-1&order=newest").Expect(200).Object(), "tasks")
			first := asObject(tasks[0])
			if first["priority"] != 7.0 || first["not_before"] != "2098-01-01T00:00:00.000Z" || first["not_after"] != "2098-02-01T00:00:00.500Z" || first["retry_at"] != nil {
				b.Errorf("%s: %v", form, first)
			}
			second := asObject(listField(b.Get("/v1/tasks?device=d-2&order=newest").Expect(200).Object(), "tasks")[0])
			if second["priority"] != 0.0 || second["not_before"] != nil || second["not_after"] != nil {
				b.Errorf("%s: %v", form, second)
			}
		}
		rows := b.getWithAccept("/v1/tasks?device=d-1", csvType).Expect(200).CSVRows()
		if i := slices.Index(rows[0], "not_before"); i < 0 || rows[1][i] != "2098-01-01T00:00:00.000Z" {
			b.Errorf("%q", rows[:2])
		}
	})
}

func TestTimesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		for times, names := range map[string][]string{
			`"not_before":"soon"`:                {"not_before"},
			`"not_after":5`:                      {"not_after"},
			`"not_before":"2098-01-01T00:00:00"`: {"not_before"},
			`"not_before":"2098-01-01T00:00:00Z","not_after":"2098-01-01T00:00:00Z"`: {"not_after", "later than not_before"},
			`"not_before":"2099-01-01T00:00:00Z"`:                                    {"not_before", "not_after of the batch"},
			`"not_after":"2097-01-01T00:00:00Z"`:                                     {"not_after", "not_before of the batch"},
		} {
			entry := `{"device":"d-1",` + times + `}`
			of := `"not_before":"2097-01-01T00:00:00Z","not_after":"2099-01-01T00:00:00Z"`
			b.Call("POST", "/v1/batches", adminToken, `{"pool":"p",`+of+`,"tasks":[{"device":"d-0"},`+entry+`]}`).ExpectProblem(422, "invalid_field", append(names, "tasks[1]")...)
			query := "/v1/batches?pool=p&not_before=2097-01-01T00:00:00Z&not_after=2099-01-01T00:00:00Z"
			b.sendWithType("POST", query, ndjsonType, entry).ExpectProblem(422, "invalid_line", append(names, "line 1")...)
		}
		for csv, names := range map[string][]string{
			":not_before\nd,soon\n":          {"line 2", "not_before", "2026-03-01T04:05:06Z"},
			":not_after,a\nd,tomorrow,\n":    {"line 2", "not_after"},
			":priority\nd,high\n":            {"line 2", "priority", "whole number"},
			":priority\nd,1000001\n":         {"line 2", "priority", "1000000"},
			":not_befor\nd,\n":               {"line 1", ":not_befor", ":not_before"},
			":not_before:json\nd,\n":         {"line 1", ":not_before"},
			":not_before,:not_before\nd,,\n": {"line 1", ":not_before"},
		} {
			b.sendWithType("POST", "/v1/batches?pool=p", csvType, "device,"+csv).ExpectProblem(422, "invalid_line", names...)
		}
	})
}

// A batch has times that neither ledger can store (Postgres would return an error, and SQLite would lose them). The
// batch is refused.
func TestTimesOutOfTheYearsAreRefused(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		for _, at := range []string{"0000-06-01T00:00:00Z", "0001-01-01T00:00:00%2B01:00", "9999-12-31T23:59:59-01:00"} {
			plain := strings.ReplaceAll(at, "%2B", "+")
			for _, name := range []string{"not_before", "not_after"} {
				time := fmt.Sprintf(`"%s":"%s"`, name, plain)
				names := []string{name, "years 1 to 9999"}
				b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["d-1"],`+time+`}`).ExpectProblem(422, "invalid_field", names...)
				b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","tasks":[{"device":"d-1",`+time+`}]}`).ExpectProblem(422, "invalid_field", append(names, "tasks[0]")...)
				b.sendWithType("POST", "/v1/batches?pool=p&"+name+"="+at, ndjsonType, `{"device":"d-1"}`).ExpectProblem(422, "invalid_field", names...)
				b.sendWithType("POST", "/v1/batches?pool=p", csvType, "device,:"+name+"\nd-1,"+plain+"\n").ExpectProblem(422, "invalid_line", append(names, "line 2")...)
			}
			b.Call("PATCH", fmt.Sprintf("/v1/batches/%d", id), adminToken, `{"not_after":"`+plain+`"}`).ExpectProblem(422, "invalid_field", "not_after", "years 1 to 9999")
			for path, names := range map[string][]string{
				"/v1/events": {"since", "until"}, fmt.Sprintf("/v1/batches/%d/results", id): {"since", "until"}, "/v1/pools/p/history": {"from", "to"},
			} {
				for _, name := range names {
					b.Get(path+"?"+name+"="+at).ExpectProblem(422, "invalid_field", name, "years 1 to 9999")
				}
			}
		}
		b.CreateBatch(`{"pool":"p","not_before":"0001-01-01T00:00:00Z","not_after":"9999-12-31T23:59:59.999Z","tasks":[{"device":"d-2","not_before":"0001-01-01T00:00:00Z","not_after":"9999-12-31T23:59:59.999Z"}]}`)
	})
}

func TestMaxWaitOfABatch(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1"],"max_wait_ms":60000}`)
		path := fmt.Sprintf("/v1/batches/%d", id)
		for _, test := range []struct {
			body string
			want float64
		}{{`{}`, 60000}, {`{"max_wait_ms":1}`, 1}, {`{"weight":2}`, 1}} {
			if got := b.Call("PATCH", path, adminToken, test.body).Expect(200).Object(); got["max_wait_ms"] != test.want {
				b.Errorf("%s: %v", test.body, got["max_wait_ms"])
			}
		}
		for _, body := range []string{`{"max_wait_ms":0}`, `{"max_wait_ms":7776000001}`, `{"max_wait_ms":"1h"}`} {
			b.Call("PATCH", path, adminToken, body).ExpectProblem(422, "invalid_field", "max_wait_ms")
			b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["d-1"],`+body[1:]).ExpectProblem(422, "invalid_field", "max_wait_ms")
		}
		_, err := b.Dispatcher.Upkeep.ExpireTasks(b.Context())
		b.Must(err)
		task := fmt.Sprintf("/v1/tasks/%v", asObject(listField(b.Get("/v1/tasks?device=d-1").Expect(200).Object(), "tasks")[0])["id"])
		if got := b.Get(task).Expect(200).Object(); got["state"] != "expired" || got["error"] != "waited longer than max_wait" {
			b.Errorf("%v", got)
		}
		b.Call("POST", task+"/retry", adminToken, nil).ExpectProblem(409, "not_retriable", "max_wait_ms")
		if got := b.Call("PATCH", path, adminToken, `{"max_wait_ms":null}`).Expect(200).Object(); got["max_wait_ms"] != 0.0 {
			b.Errorf("%v", got)
		}
		again := b.Call("POST", "/v1/tasks/retry?error=waited+longer+than+max_wait", adminToken, nil).Expect(200).Object()
		if again["tasks"] != 1.0 || b.Get(task).Expect(200).Object()["state"] != "pending" {
			b.Errorf("%v", again)
		}
	})
}
