package app

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// exchange is a script of the actions of a device and of operators, with the reply that the last report must get over
// HTTP and over MQTT. runScript executes script line by line. In script, @device, @other and @pool stand for names of
// this run, and @task and @token for the values of the latest grant. The field want is the last reply in short form
// (see replySummary).
type exchange struct {
	script, want string
	mqtt         string // expected over MQTT instead of want, if the protocol defines a difference
}

const (
	// grantScript is a script after which the device has been granted a task.
	grantScript = `pool {"capacity":1}
batch {"devices":["@device"],"retry_backoff_ms":0}
report {"id":"held"}
`
	succeededResult = `{"task":@task,"token":@token,"status":"succeeded"}`
	// failedReport is the result of a task that was cancelled. stopped is the earlier reply, which cancelled the
	// task.
	failedReport   = `report {"id":"2","results":[{"task":@task,"token":@token,"status":"failed"}]}`
	stopThenFailed = `report {"id":"1","running":[{"task":@task,"token":@token}]}` + "\n" + failedReport
)

func allExchanges() map[string]exchange {
	all := make(map[string]exchange)
	for _, some := range []map[string]exchange{reasonExchanges(), outcomeExchanges(), acceptedExchanges(), refusedExchanges()} {
		maps.Copy(all, some)
	}
	return all
}

// reasonExchanges returns exchanges that lead to every reason of a reply, including replies to reports without an
// id.
func reasonExchanges() map[string]exchange {
	return map[string]exchange{
		"granted":              {script: grantScript, want: "granted"},
		"none":                 {script: `report {"id":"1"}`, want: "none"},
		"full":                 {script: "pool {\"capacity\":1}\nbatch {\"devices\":[\"@other\"]}\nother\nbatch {\"devices\":[\"@device\"]}\nreport {\"id\":\"1\"}", want: "full"},
		"closed pool":          {script: "pool {\"capacity\":0}\nbatch {\"devices\":[\"@device\"]}\nreport {\"id\":\"1\"}", want: "full"},
		"window":               {script: "pool {\"capacity\":60}\nbatch {\"devices\":[\"@device\"],\"not_before\":\"2100-01-01T00:00:00.000Z\"}\nreport {\"id\":\"1\"}", want: "window"},
		"paused":               {script: "pool {\"capacity\":60,\"paused\":true}\nbatch {\"devices\":[\"@device\"]}\nreport {\"id\":\"1\"}", want: "paused"},
		"busy":                 {script: grantScript + `report {"id":"1","running":[{"task":@task,"token":@token,"progress":0.5}]}`, want: "busy renewed"},
		"declined":             {script: grantScript + `report {"id":"1","accept":false}`, want: "declined"},
		"delivered again":      {script: grantScript + `report {"id":"1"}`, want: "granted again:1"},
		"and a third time":     {script: grantScript + "report {\"id\":\"1\"}\nreport {\"id\":\"2\"}", want: "granted again:2"},
		"blocked":              {script: grantScript + "block\nreport {\"id\":\"1\",\"results\":[" + succeededResult + "]}", want: "blocked recorded", mqtt: "forbidden:forbidden"},
		"blocked while inside": {script: grantScript + "block\nreport {\"id\":\"1\",\"running\":[{\"task\":@task,\"token\":@token}]}", want: "blocked cancel:blocked", mqtt: "forbidden:forbidden"},

		"no body":       {script: `report `, want: "none"},
		"blank body":    {script: "report  \t", want: "none"},
		"null":          {script: `report null`, want: "none"},
		"null id":       {script: `report {"id":null}`, want: "none"},
		"empty id":      {script: `report {"id":""}`, want: "none"},
		"work, no id":   {script: "pool {\"capacity\":60}\nbatch {\"devices\":[\"@device\"]}\nreport {}", want: "granted", mqtt: "declined:id_required"},
		"held, no id":   {script: grantScript + `report {}`, want: "granted again:1", mqtt: "declined:id_required"},
		"result, no id": {script: grantScript + `report {"results":[` + succeededResult + `]}`, want: "none recorded"},
		"renew, no id":  {script: grantScript + `report {"running":[{"task":@task,"token":@token}]}`, want: "busy renewed"},
	}
}

// outcomeExchanges returns exchanges about the acknowledgement of results, and about tasks that the device is told
// to stop.
func outcomeExchanges() map[string]exchange {
	return map[string]exchange{
		"recorded":          {script: grantScript + `report {"id":"1","results":[` + succeededResult + `]}`, want: "none recorded"},
		"failed":            {script: grantScript + `report {"id":"1","accept":false,"results":[{"task":@task,"token":@token,"status":"failed","error":"e"}]}`, want: "declined recorded"},
		"failed, and again": {script: grantScript + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"failed"}]}`, want: "granted recorded"},
		"rejected task":     {script: grantScript + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"rejected"}]}`, want: "none recorded"},
		"returned":          {script: grantScript + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"returned","retry_after_ms":600000}]}`, want: "window recorded"},
		"duplicate":         {script: grantScript + "report {\"id\":\"1\",\"results\":[" + succeededResult + "]}\nreport {\"id\":\"1\",\"results\":[" + succeededResult + "]}", want: "none duplicate"},
		"twice in one":      {script: grantScript + `report {"id":"1","results":[` + succeededResult + `,` + succeededResult + `]}`, want: "none recorded duplicate"},
		"late":              {script: grantScript + "lapsed\nreport {\"id\":\"1\",\"results\":[" + succeededResult + "]}", want: "none late"},
		"unknown":           {script: `report {"id":"1","results":[{"task":9007199254740991,"token":7,"status":"failed"}]}`, want: "none unknown"},
		"of another token":  {script: grantScript + `report {"id":"1","results":[{"task":@task,"token":9007199254740991,"status":"succeeded"}]}`, want: "granted again:1 unknown"},
		"output dropped":    {script: grantScript + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"succeeded","output":"` + strings.Repeat("x", 32<<10) + `"}]}`, want: "none recorded:output_dropped"},
		"bad entries": {
			script: grantScript + `report {"id":"1","results":[7,null,{},{"task":1.5},{"task":@task,"token":-1},{"task":@task,"token":@token,"status":"done"},` + succeededResult + `]}`,
			want:   "none rejected:not_an_object rejected:not_an_object rejected:invalid_task rejected:invalid_task rejected:invalid_token rejected:invalid_status recorded",
		},
		"bad fields": {
			script: grantScript + `report {"id":"1","results":[{"task":9007199254740992,"token":1},{"task":@task,"token":@token,"status":"failed","error":7},` +
				`{"task":@task,"token":@token,"status":"returned","retry_after_ms":-1},` + succeededResult + `]}`,
			want: "none rejected:invalid_task rejected:invalid_error rejected:invalid_retry_after recorded",
		},
		"numbers as strings": {script: grantScript + `report {"id":"1","results":[{"task":"@task","token":"@token","status":"succeeded"}]}`, want: "none recorded"},

		"cancelled":               {script: grantScript + "cancel\nreport {\"id\":\"1\",\"running\":[{\"task\":@task,\"token\":@token}]}", want: "busy cancel:cancelled"},
		"cancelled, silent of it": {script: grantScript + "cancel\nreport {\"id\":\"1\"}", want: "busy cancel:cancelled"},
		"expired":                 {script: grantScript + "lapsed\nreport {\"id\":\"1\",\"running\":[{\"task\":@task,\"token\":@token}]}", want: "busy cancel:expired"},
		"run too long":            {script: grantScript + "sql UPDATE grants SET max_until = now() + interval '5 s', lease_until = now() + interval '5 s' WHERE device = '@device'\nreport {\"id\":\"1\",\"running\":[{\"task\":@task,\"token\":@token}]}", want: "busy cancel:max_run"},
		"failed after cancelled":  {script: grantScript + "cancel\n" + stopThenFailed, want: "none recorded"},
		"failed after expired":    {script: grantScript + "lapsed\n" + stopThenFailed, want: "none late"},
		"failed after stale":      {script: grantScript + "report {\"id\":\"1\",\"running\":[{\"task\":@task,\"token\":9007199254740991}]}\n" + failedReport, want: "granted recorded"},
		"stale":                   {script: grantScript + `report {"id":"1","running":[{"task":@task,"token":9007199254740991}]}`, want: "busy cancel:stale"},
		"bad running entries":     {script: grantScript + `report {"id":"1","running":[7,{"task":-1},{"task":@task,"token":@token,"progress":"x"}]}`, want: "busy renewed cancel:stale cancel:stale"},
	}
}

// acceptedExchanges returns exchanges whose reports have texts and fields of all kinds. The examples of the
// documentation are also included, under their names.
func acceptedExchanges() map[string]exchange {
	return map[string]exchange{
		"nothing but null":       {script: `report {"id":null,"results":null,"running":null,"accept":null,"attributes":null}`, want: "none"},
		"128 characters":         {script: `report {"id":"` + strings.Repeat("é", 128) + `"}`, want: "none"},
		"100 entries":            {script: `report {"id":"1","accept":false,"results":[` + strings.Repeat("{},", 99) + `{}]}`, want: "declined" + strings.Repeat(" rejected:invalid_task", 100)},
		"64 attributes":          {script: `report {"id":"1","attributes":{` + attributeMembers(64) + `}}`, want: "none"},
		"16 levels":              {script: `report {"id":"1","x":` + strings.Repeat("[", 15) + strings.Repeat("]", 15) + `}`, want: "none"},
		"declined, at work":      {script: grantScript + `report {"id":"1","accept":false,"running":[{"task":@task,"token":@token}]}`, want: "declined renewed"},
		"unknown fields":         {script: `report {"id":"1","unknown":{"a":[1]},"results":[]}`, want: "none"},
		"NUL in the id":          {script: `report {"id":"a\u0000b"}`, want: "none"},
		"surrogates":             {script: grantScript + `report {"id":"\ud800x","results":[{"task":@task,"token":@token,"status":"failed","error":"\udc00\u0000"}],"accept":false}`, want: "declined recorded"},
		"not UTF-8":              {script: "report {\"id\":\"\xff\xc3\"}", want: "none"},
		"attributes":             {script: `report {"id":"1","attributes":{"firmware":"7.2","gone":null}}`, want: "none"},
		"attributes grown large": {script: `report {"id":"1","attributes":{"a":"` + strings.Repeat("x", 5000) + "\"}}\n" + `report {"id":"2","attributes":{"b":"` + strings.Repeat("x", 5000) + `"}}`, want: "none:attributes_too_large"},

		"report-empty":    {want: "none"},
		"report":          {want: "busy unknown cancel:expired"},
		"report-failed":   {want: "none unknown"},
		"report-returned": {want: "declined unknown"},
	}
}

// attributeMembers returns the text of n members of a JSON object.
func attributeMembers(n int) string {
	members := make([]string, n)
	for i := range members {
		members[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	return strings.Join(members, ",")
}

// refusedExchanges returns exchanges whose reports are answered with an error.
func refusedExchanges() map[string]exchange {
	deep, many := strings.Repeat("[", 17)+strings.Repeat("]", 17), strings.Repeat(`{},`, 100)+`{}`
	return map[string]exchange{
		"not JSON":             {script: `report {"id":"1",]`, want: "invalid:invalid_json"},
		"two values":           {script: `report {"id":"1"}{}`, want: "invalid:invalid_json"},
		"array":                {script: `report [1]`, want: "invalid:invalid_field"},
		"number as id":         {script: `report {"id":7}`, want: "invalid:invalid_field"},
		"long id":              {script: `report {"id":"` + strings.Repeat("x", 129) + `"}`, want: "invalid:invalid_field"},
		"accept is a number":   {script: `report {"id":"1","accept":1}`, want: "invalid:invalid_field"},
		"results is an object": {script: `report {"id":"1","results":{"a":1}}`, want: "invalid:invalid_field"},
		"too deep":             {script: `report {"id":"1","x":` + deep + `}`, want: "invalid:too_deep"},
		"101 results":          {script: `report {"id":"1","results":[` + many + `]}`, want: "invalid:too_many_results"},
		"101 running":          {script: `report {"id":"1","running":[` + many + `]}`, want: "invalid:too_many_running"},
		"65 attributes":        {script: `report {"id":"1","attributes":{` + attributeMembers(65) + `}}`, want: "invalid:attributes_too_large"},
		"65,537 bytes":         {script: `report {"id":"1"}` + strings.Repeat(" ", 65537-len(`{"id":"1"}`)), want: "too_large:body_too_large"},
		"65,536 bytes":         {script: `report {"id":"1"}` + strings.Repeat(" ", 65536-len(`{"id":"1"}`)), want: "none"},
		"refused whole":        {script: grantScript + `report {"id":"1","results":[` + succeededResult + `],"accept":1}` + "\nreport {\"id\":\"2\"}", want: "granted again:1"},
	}
}

// outageExchanges returns exchanges during which a server cannot be reached.
func outageExchanges() map[string]exchange {
	return map[string]exchange{
		"no Redis":             {script: "pool {\"capacity\":60}\nbatch {\"devices\":[\"@device\"]}\nwithout redis\nreport {\"id\":\"1\"}", want: "unavailable"},
		"no Redis, a result":   {script: grantScript + "without redis\n" + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"failed"}]}`, want: "unavailable recorded"},
		"no Redis, a renewal":  {script: grantScript + "without redis\n" + `report {"id":"1","running":[{"task":@task,"token":@token}]}`, want: "busy renewed"},
		"no Postgres":          {script: "without postgres\nreport {\"id\":\"1\"}", want: "unavailable:unavailable"},
		"no Postgres, results": {script: grantScript + "without postgres\n" + `report {"id":"1","results":[{"task":@task,"token":@token,"status":"failed"},7]}`, want: "unavailable:unavailable"},
		"no Postgres, invalid": {script: "without postgres\nreport {", want: "invalid:invalid_json"},
	}
}

// reportExamples returns the examples of reports in docs/protocol.md.
func reportExamples(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/protocol.md")
	must.Succeed(t, err)
	found := make(map[string]string)
	for _, m := range regexp.MustCompile("(?s)<!-- example: (report[a-z-]*) -->\n```json\n(.*?)\n```").FindAllStringSubmatch(string(page), -1) {
		found[m[1]] = m[2]
	}
	if len(found) < 4 {
		t.Fatalf("%d examples of reports", len(found))
	}
	return found
}
