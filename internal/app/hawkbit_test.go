package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// deploymentPayload is the payload of a batch for devices that speak DDI.
const deploymentPayload = `{"deployment":{"chunks":[{"part":"os","version":"7.2","name":"router","artifacts":[{"filename":"router.swu","size":20480,` +
	`"hashes":{"sha1":"0123456789012345678901234567890123456789","sha256":"0123456789012345678901234567890123456789012345678901234567890123"},` +
	`"url":"http://files.test/router.swu"}]}]}}`

// ddiDevice is a device that speaks DDI with the token of the fleet.
type ddiDevice struct {
	*testing.T
	*instance

	id            string
	authorization string
}

// newDDIDevice returns a device that uses the fleet token.
func newDDIDevice(t *testing.T, i *instance, id string) *ddiDevice {
	t.Helper()
	return &ddiDevice{t, i, id, "GatewayToken " + i.fleet}
}

// send sends a request and returns the status and the body. In the body, the text URL replaces the address of the server.
func (d *ddiDevice) send(method, resource, body string) (int, string) {
	d.Helper()
	if resource != "" {
		resource = "/" + resource
	}
	request, err := http.NewRequestWithContext(d.Context(), method, d.url+"/DEFAULT/controller/v1/"+d.id+resource, bytes.NewReader([]byte(body)))
	must.Succeed(d, err)
	request.Header.Set("Authorization", d.authorization)
	response, err := http.DefaultClient.Do(request)
	must.Succeed(d, err)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	must.Succeed(d, err)
	if len(content) > 1100 {
		d.Errorf("%s %s: an answer of %d bytes", method, resource, len(content))
	}
	if kind := response.Header.Get("Content-Type"); response.StatusCode == http.StatusOK && kind != "application/hal+json" {
		d.Errorf("%s %s: content type %q", method, resource, kind)
	}
	return response.StatusCode, strings.ReplaceAll(string(content), d.url, "URL")
}

// expect sends a request and checks the answer. want is a status, optionally followed by a space and the body, in which "*" stands for any
// text.
func (d *ddiDevice) expect(method, resource, body, want string) {
	d.Helper()
	status, content := d.send(method, resource, body)
	got := strings.TrimSpace(fmt.Sprint(status, " ", content))
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(want), `\*`, `.*`) + "$"
	if !regexp.MustCompile(pattern).MatchString(got) {
		d.Errorf("%s %s %s:\n got %s\nwant %s", method, resource, body, got, want)
	}
}

// feedback sends a feedback and checks the status.
func (d *ddiDevice) feedback(resource, execution, finished string, want int) {
	d.Helper()
	d.expect("POST", resource+"/feedback", fmt.Sprintf(`{"id":"1","time":"20251009T081500","status":{"result":{"finished":%q},"execution":%q,"details":["step %s"]}}`, finished, execution, execution), fmt.Sprint(want, "*"))
}

// awaitAction polls until the device gets a link to resource, and returns the number of the action.
func (d *ddiDevice) awaitAction(resource string) (link string) {
	d.Helper()
	find := regexp.MustCompile(`"` + resource + `":\{"href":"URL/DEFAULT/controller/v1/` + regexp.QuoteMeta(d.id) + `/(` + resource + `/[0-9]+)"\}`)
	await.True(d.T, "a link to "+resource, func() bool {
		_, body := d.send("GET", "", "")
		if found := find.FindStringSubmatch(body); found != nil {
			link = found[1]
		}
		return link != ""
	})
	return link
}

// queueDeployment queues a task for each device in a pool, and returns the answer of the API.
func (i *instance) queueDeployment(t *testing.T, pool, settings string, ids ...string) string {
	t.Helper()
	tasks, _ := json.Marshal(ids) // texts always marshal
	return string(i.callOperator(t, "POST", "/v1/batches", fmt.Sprintf(`{"pool":%q,"payload":%s,"devices":%s%s}`, pool, deploymentPayload, tasks, settings)))
}

const sleep = `{"config":{"polling":{"sleep":"00:00:*"}}`

// TestADDIDeviceGetsItsSlotAndReportsTheEnd plays one update in the order of swupdate's requests. The poll and the deployment are read
// twice, the end is reported once, and a repeated report of the end changes nothing.
func TestADDIDeviceGetsItsSlotAndReportsTheEnd(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1,"lease_ms":60000}`)
	one, two := newDDIDevice(t, i, "one"), newDDIDevice(t, i, "two")
	one.expect("GET", "", "", "200 "+sleep+`,"_links":{"configData":{"href":"URL/DEFAULT/controller/v1/one/configData"}}}`)
	one.expect("PUT", "configData", `{"id":"","time":"x","status":{"result":{"finished":"success"},"execution":"closed","details":[]},"data":{"hw":"ax-3","old":"1"}}`, "200")
	one.expect("PUT", "configData", `{"mode":"remove","data":{"old":"x"}}`, "200")
	one.expect("GET", "", "", "200 "+sleep+"}")
	two.expect("GET", "", "", "200 *")
	made := i.queueDeployment(t, "p", `,"max_attempts":1`, "one", "two")
	if !strings.Contains(made, "files.test: swupdate sends the token") {
		t.Errorf("no warning about the foreign host: %s", made)
	}
	link := one.awaitAction("deploymentBase")
	two.expect("GET", "", "", "200 "+sleep+`,"_links":{"configData":*`)
	two.expect("GET", "", "", "200 "+sleep+`}`) // no slot, no link
	for range 2 {
		one.expect("GET", "", "", "200 "+sleep+`,"_links":{"deploymentBase":{"href":"URL/DEFAULT/controller/v1/one/`+link+`"}}}`)
		one.expect("GET", link, "", `200 {"id":"1","deployment":{"download":"forced","update":"forced","chunks":[{"part":"os","version":"7.2","name":"router","artifacts":[{"filename":"router.swu","hashes":{"sha1":"0123456789012345678901234567890123456789","sha256":"0123456789012345678901234567890123456789012345678901234567890123"},"size":20480,"_links":{"download-http":{"href":"http://files.test/router.swu"}}}]}]}}`)
	}
	two.expect("GET", link, "", "404")
	one.feedback(link, "proceeding", "none", 200)
	one.expect("POST", link+"/feedback", `{"status":{"execution":"download","result":{"finished":"none","progress":{"cnt":1,"of":4}},"details":[]}}`, "200")
	one.feedback("deploymentBase/7", "closed", "success", 410)
	one.feedback("cancelAction/1", "closed", "success", 405)
	one.expect("GET", "installedBase/1", "", "404")
	one.feedback(link, "closed", "success", 200)
	one.feedback(link, "closed", "success", 410)
	one.feedback(link, "proceeding", "none", 410)
	one.expect("GET", link, "", "404")
	one.expect("GET", "installedBase/1", "", `200 {"id":"1",*`)
	one.expect("GET", "", "", "200 "+sleep+`,"_links":{"configData":*,"installedBase":{"href":"URL/DEFAULT/controller/v1/one/installedBase/1"}}}`)
	link = two.awaitAction("deploymentBase")
	two.feedback(link, "closed", "failure", 200)
	two.expect("GET", "", "", "200 *")
	if got := string(i.callOperator(t, "GET", "/v1/devices/one", "")); !strings.Contains(got, `"attributes":{"hw":"ax-3"}`) {
		t.Errorf("attributes: %s", got)
	}
	if got := string(i.callOperator(t, "GET", "/v1/tasks?device=two", "")); !strings.Contains(got, `"state":"failed"`) || !strings.Contains(got, "step closed") {
		t.Errorf("the failed task: %s", got)
	}
}

// TestADDIDeviceIsAskedToStop cancels a running task. One device stops. Another device refuses, as rauc-hawkbit-updater does while it
// installs, and reports the end of the task, which continued. If the cancel arrives before the installation starts, swupdate reports a
// success without an installation.
func TestADDIDeviceIsAskedToStop(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":3,"lease_ms":60000}`)
	stops, refuses, skips := newDDIDevice(t, i, "stops"), newDDIDevice(t, i, "refuses"), newDDIDevice(t, i, "skips")
	i.queueDeployment(t, "p", "", "stops", "refuses", "skips")
	link, other := stops.awaitAction("deploymentBase"), refuses.awaitAction("deploymentBase")
	skips.awaitAction("deploymentBase")
	i.callOperator(t, "POST", "/v1/batches/1/cancel", "")
	stop, refused := stops.awaitAction("cancelAction"), refuses.awaitAction("cancelAction")
	stops.expect("GET", link, "", "404")
	stops.expect("GET", stop, "", `200 {"id":"1","cancelAction":{"stopId":"1"}}`)
	stops.feedback(stop, "canceled", "none", 200) // a remark: the action is not stopped by it
	stops.feedback(stop, "closed", "success", 200)
	stops.feedback(stop, "closed", "success", 410)
	refuses.feedback(refused, "rejected", "success", 200)
	refuses.expect("GET", refused, "", "404")
	if again := refuses.awaitAction("deploymentBase"); again != other {
		t.Errorf("the action has another number: %s, not %s", again, other)
	}
	refuses.feedback(other, "proceeding", "none", 200)
	refuses.feedback(other, "closed", "success", 200)
	skips.expect("GET", skips.awaitAction("cancelAction"), "", "200 *")
	skips.expect("POST", "deploymentBase/1/feedback", `{"status":{"execution":"closed","result":{"finished":"success"},"details":["Skipped Update."]}}`, "200")
	for id, state := range map[string]string{"stops": "cancelled", "refuses": "succeeded", "skips": "cancelled"} {
		if got := string(i.callOperator(t, "GET", "/v1/tasks?device="+id, "")); !strings.Contains(got, `"state":"`+state+`"`) {
			t.Errorf("%s: %s", id, got)
		}
	}
}

// TestADDIDeviceWithoutALeaseIsAnOverrun lets a lease end while its device is silent. When the device reports again, its late success is
// kept, and the event and the metric record the overrun once. The next grant of the device has another number.
func TestADDIDeviceWithoutALeaseIsAnOverrun(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	polls, reports := newDDIDevice(t, i, "polls"), newDDIDevice(t, i, "reports")
	for _, device := range []*ddiDevice{polls, reports} {
		i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1,"lease_ms":2000}`)
		i.queueDeployment(t, "p", `,"max_attempts":3,"retry_backoff_ms":0`, device.id)
		link := device.awaitAction("deploymentBase")
		await.True(t, "the end of the lease", func() bool {
			return strings.Contains(string(i.callOperator(t, "GET", "/v1/events?device="+device.id, "")), `"task.lapsed"`)
		})
		i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1,"lease_ms":60000}`) // the next lease lasts to the end of the test
		if device == reports {
			device.feedback(link, "closed", "success", 410)
			device.feedback(link, "closed", "success", 410)
		} else if next := device.awaitAction("deploymentBase"); next != "deploymentBase/2" {
			t.Errorf("the next grant is %s", next)
		} else {
			device.feedback(link, "closed", "success", 410) // of the first action: it changes no grant
			device.feedback(next, "closed", "success", 200)
		}
		events := string(i.callOperator(t, "GET", "/v1/events?device="+device.id, ""))
		if n := strings.Count(events, `"device.overrun"`); n != 1 {
			t.Errorf("%d overruns of %s: %s", n, device.id, events)
		}
		if got := string(i.callOperator(t, "GET", "/v1/tasks?device="+device.id, "")); !strings.Contains(got, `"state":"succeeded"`) {
			t.Errorf("the task of %s: %s", device.id, got)
		}
	}
	if got := string(i.callOperator(t, "GET", "/metrics", "")); !strings.Contains(got, "dispatcher_hawkbit_overruns_total 2\n") {
		t.Errorf("the metric is not 2")
	}
}

// TestDDITokensAreThoseOfTheDevice checks the two schemes of Authorization. A token of 32 characters that the operator chose is accepted.
func TestDDITokensAreThoseOfTheDevice(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	token := "0123456789abcdef0123456789abcdef"
	i.callOperator(t, "POST", "/v1/devices", `{"id":"own","token":"`+token+`"}`)
	for _, bad := range []string{"ABCDEF6789abcdef0123456789abcdef", token + "0"} {
		if status, body := i.call(t, "POST", "/v1/devices", i.admin, `{"id":"bad","token":"`+bad+`"}`); status != 422 {
			t.Errorf("token %q: %d %s", bad, status, body)
		}
	}
	if status, body := i.call(t, "POST", "/v1/devices", i.admin, `{"id":"same","token":"`+token+`"}`); status != 409 {
		t.Errorf("a token in use: %d %s", status, body)
	}
	own := newDDIDevice(t, i, "own")
	for _, c := range []struct{ authorization, want string }{
		{"", "401*"},
		{"Bearer " + token, "401*"},
		{"TargetToken " + token + "x", "401*"},
		{"TargetToken " + i.fleet, "401*"},
		{"GatewayToken " + token, "401*"},
		{"GatewayToken " + i.fleet, "200 *"},
		{"TargetToken " + token, "200 *"},
		{"GatewayToken " + i.fleet, "403*"}, // the device has used its own token
	} {
		own.authorization = c.authorization
		own.expect("GET", "", "", c.want)
	}
	other := newDDIDevice(t, i, "other")
	other.authorization = "TargetToken " + token
	other.expect("GET", "", "", "403*")
	own.authorization = "TargetToken " + token
	own.expect("GET", "deploymentBase/99999999999", "", "404")
	own.expect("POST", "deploymentBase/x/feedback", "{}", "410")
	own.expect("POST", "deploymentBase/1/feedback", "{", "400*")
	own.expect("PUT", "configData", `{"mode":"other","data":{}}`, "400*")
	own.expect("PUT", "configData", `{"data":{"k":"`+strings.Repeat("x", 9000)+`"}}`, "400*")
}

// TestATaskThatIsNoDeploymentIsNotSentOverDDI queues an ordinary payload for a device that speaks DDI: the dry run and `why` return
// wrong_wire, and the device gets no link. Over the dispatcher's own protocol, the device gets the task.
func TestATaskThatIsNoDeploymentIsNotSentOverDDI(t *testing.T) {
	t.Parallel()
	i, d := startDev(t, t.TempDir())
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1}`)
	device := newDDIDevice(t, i, "one")
	device.expect("GET", "", "", "200 *")
	must.Succeed(t, d.app.dispatcher.Seen.Flush(t.Context()))
	if got := string(i.callOperator(t, "GET", "/v1/devices/one", "")); !strings.Contains(got, `"wire":"hawkbit"`) {
		t.Errorf("the wire of the device: %s", got)
	}
	for payload, want := range map[string]string{
		`{"server":"st1"}`:            "wrong_wire: 1 tasks",
		`{"deployment":{"chunks":0}}`: "payload.deployment",
	} {
		got := string(i.callOperator(t, "POST", "/v1/batches?dry_run=true", `{"pool":"p","payload":`+payload+`,"devices":["one"]}`))
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s", payload, got)
		}
	}
	i.callOperator(t, "POST", "/v1/batches", `{"pool":"p","payload":{"server":"st1"},"devices":["one"]}`)
	await.True(t, "the reason wrong_wire", func() bool {
		device.expect("GET", "", "", "200 "+sleep+"*}")
		return strings.Contains(string(i.callOperator(t, "GET", "/v1/tasks/1/why", "")), `"code":"wrong_wire"`)
	})
	if reply := i.sendReport(t, "one", `{}`); reply.Reason != devices.ReasonGranted {
		t.Errorf("over HTTP: %+v", reply)
	}
	device.expect("GET", "", "", "200 "+sleep+"*}") // it holds a task that DDI cannot carry
}

// TestMetadataOnly allows metadata_only in the profile of a device that speaks DDI: a short payload that is no deployment is sent as
// metadata, byte for byte, and its end is recorded. A payload of more than 256 bytes stays wrong_wire.
func TestMetadataOnly(t *testing.T) {
	t.Parallel()
	i, d := startDev(t, t.TempDir())
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1}`)
	i.callOperator(t, "PUT", "/v1/profiles/own", `{"metadata_only":true}`)
	i.callOperator(t, "POST", "/v1/devices", `{"id":"one","profile":"own"}`)
	device := newDDIDevice(t, i, "one")
	device.expect("GET", "", "", "200 *")
	must.Succeed(t, d.app.dispatcher.Seen.Flush(t.Context()))
	longest := `{"text":"` + strings.Repeat(`\\\"`, 61) + `x"}` // 256 bytes; each of the 61 * 4 becomes two
	for _, batch := range []struct{ payload, task, chunk string }{
		{`{"server": "a&b <1>"}`, "", `"name":"task","metadata":[{"key":"payload","value":"{\"server\": \"a&b <1>\"}"}]`},
		{``, `,"kind":"reboot"`, `"name":"reboot","metadata":[{"key":"payload","value":"null"}]`},
		{longest, `,"kind":"` + strings.Repeat("k", 64) + `"`, `"name":"k*`},
	} {
		text := `{"pool":"p","devices":["one"]` + batch.task
		if batch.payload != "" {
			text += `,"payload":` + batch.payload
		}
		if got := string(i.callOperator(t, "POST", "/v1/batches?dry_run=true", text+"}")); strings.Contains(got, "wrong_wire") {
			t.Errorf("%s: %s", text, got)
		}
		i.callOperator(t, "POST", "/v1/batches", text+"}")
		link := device.awaitAction("deploymentBase")
		device.expect("GET", link, "", `200 {"id":"*","deployment":{"download":"forced","update":"forced","chunks":[{"part":"task","version":"1",`+batch.chunk+`,"artifacts":[]}]}}`)
		device.feedback(link, "closed", "success", 200)
	}
	// The setting is removed from the profile. The device gets no link to the deployment that it installed, because the link would answer 404.
	i.callOperator(t, "PUT", "/v1/profiles/own", `{}`)
	device.expect("GET", "", "", "200 "+sleep+`,"_links":{"configData":{"href":"URL/DEFAULT/controller/v1/one/configData"}}}`)
	i.callOperator(t, "PUT", "/v1/profiles/own", `{"metadata_only":true}`)
	// The setting is removed from the profile while the task runs. The device no longer gets a link to the task, but a cancel reaches the
	// device.
	i.callOperator(t, "POST", "/v1/batches", `{"pool":"p","devices":["one"],"payload":{}}`)
	device.awaitAction("deploymentBase")
	i.callOperator(t, "PUT", "/v1/profiles/own", `{}`)
	device.awaitNoLink()
	i.callOperator(t, "POST", "/v1/tasks/4/cancel", "")
	device.feedback(device.awaitAction("cancelAction"), "closed", "success", 200)
	i.callOperator(t, "PUT", "/v1/profiles/own", `{"metadata_only":true}`)

	tooLong := `{"pool":"p","devices":["one"],"payload":` + strings.Replace(longest, "x", "xy", 1) + `}`
	if got := string(i.callOperator(t, "POST", "/v1/batches?dry_run=true", tooLong)); !strings.Contains(got, "wrong_wire: 1 tasks") {
		t.Errorf("a payload of 257 bytes: %s", got)
	}
	i.callOperator(t, "POST", "/v1/batches", tooLong)
	device.expect("GET", "", "", "200 "+sleep+"*}")
	if got := string(i.callOperator(t, "GET", "/v1/tasks/5/why", "")); !strings.Contains(got, `"code":"wrong_wire"`) {
		t.Errorf("why: %s", got)
	}
	i.callOperator(t, "POST", "/v1/batches", `{"pool":"p","payload":`+deploymentPayload+`,"devices":["one"]}`)
	device.expect("GET", device.awaitAction("deploymentBase"), "", `200 *router.swu*`)
}
