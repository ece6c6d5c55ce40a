package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// A long JSON body of a batch is read as a stream. It has the same effect as a short one.
func TestLongBatchesMeanWhatShortOnesDo(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	many := func(entry string) string {
		var out strings.Builder
		for n := range 10_000 { // more than the part that is read first
			fmt.Fprintf(&out, strings.ReplaceAll(entry, "%", "%[1]d")+",", n)
		}
		return out.String()
	}
	for _, test := range []struct {
		body   string
		status int
		says   string
	}{
		{`{"devices":[` + many(`"d-%"`) + `"x"],"pool":"p","name":"long"}`, 201, `"tasks":10001`},
		{`{"tasks":[` + many(`{"device":"d-%","payload":{"n":%}}`) + `{"device":"x"}],"pool":"p","payload":{"a":1},"select":null,"devices":[]}`, 201, `"tasks":10001`},
		{`{"pool":"p","duplicates":"skip","tasks":[` + strings.Repeat(`{"device":"d"},`, 10_000) + `{"device":"x"}]}`, 201, `"skipped":9999`},
		{`{"pool":"p","devices":[` + many(`"d-%"`) + `"-"]}`, 422, `devices[10000]`},
		{`{"pool":"p","tasks":[` + strings.Repeat(`{},`, 100_000) + `{}]}`, 422, `tasks[0]`},
		{`{"pool":"p","tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x","Priority":1}]}`, 400, `unknown_field`},
		{`{"pool":"p","tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x","y":1}]}`, 400, `unknown_field`},
		{`{"pool":"p","tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x","device":"y"}]}`, 422, `twice`},
		{`{"pool":"p","tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x"}],"tasks":[]}`, 400, `twice`},
		{`{"pool":"p","Pool":"q","tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x"}]}`, 400, `unknown_field`},
		{`{"pool":"p","nosuch":1,"tasks":[` + many(`{"device":"d-%"}`) + `{"device":"x"}]}`, 400, `unknown_field`},
		{`{"pool":"p","select":{"tags":{"a":"b"}},"devices":[` + many(`"d-%"`) + `"x"]}`, 422, `exactly one`},
		{`{"pool":"p","tasks":[{"device":"x"}],"devices":[` + many(`"d-%"`) + `"x"]}`, 422, `exactly one`},
		{`{"pool":"nosuch","devices":[` + many(`"d-%"`) + `"x"]}`, 422, `unknown_pool`},
		{`{"pool":"p","devices":[` + many(`"d-%"`) + `"x"`, 400, `invalid_request`},
		{`{"pool":"p","devices":"` + many(`d-%`) + `"}`, 400, `must be a list`},
		{`{"pool":"p","tasks":[{"device":"x","payload":"` + strings.Repeat("x", 3<<20) + `"}]}`, 400, `of more than`},
		{`{"pool":"p","tasks":[{"device":"x","payload":"` + strings.Repeat("x", 100<<10) + `"}]}`, 422, `at most 32768`},
		{strings.Repeat("[", 1<<20), 400, `invalid_request`},
	} {
		a := b.Call("POST", "/v1/batches", adminToken, test.body)
		if a.Status != test.status || !strings.Contains(string(a.Body), test.says) {
			t.Errorf("%.60s...: %d %.300s, want %d, %s", test.body, a.Status, a.Body, test.status, test.says)
		}
	}
	task := b.Get("/v1/tasks?batch=2&page_size=1").Expect(200)
	if !strings.Contains(string(task.Body), `"payload":{"a":1,"n":0}`) {
		t.Errorf("%s", task.Body)
	}
}
