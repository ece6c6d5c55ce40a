package app

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// TestALongFeedbackOverDDIEndsItsTask reports the end of a task with details that are long, or that are longer as JSON of the dispatcher. An
// output over 32 KiB is dropped, an error is cut, and the slot is free for the next task.
func TestALongFeedbackOverDDIEndsItsTask(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	i.callOperator(t, "PUT", "/v1/pools/p", `{"capacity":1,"lease_ms":60000}`)
	device := newDDIDevice(t, i, "one")
	for id, c := range []struct {
		finished, detail, state string
		isOutputDropped         bool
		errorLength             int
	}{
		{"failure", strings.Repeat("x", 33_000), "failed", true, devices.MaxError},
		{"failure", strings.Repeat("<", 32_000), "failed", false, devices.MaxError},
		{"failure", strings.Repeat("\xff", 30_000), "failed", true, devices.MaxError - 1}, // each byte is replaced by a character of three bytes
		{"success", strings.Repeat("&", 65_000), "succeeded", true, 0},
	} {
		i.queueDeployment(t, "p", `,"max_attempts":1`, "one")
		body := fmt.Sprintf(`{"status":{"execution":"closed","result":{"finished":%q},"details":["%s"]}}`, c.finished, c.detail)
		if status, answer := device.send("POST", device.awaitAction("deploymentBase")+"/feedback", body); status != 200 {
			t.Errorf("task %d: %d %s", id+1, status, answer)
		}
		var task operators.Task
		must.Succeed(t, json.Unmarshal(i.callOperator(t, "GET", fmt.Sprint("/v1/tasks/", id+1), ""), &task))
		isKept := string(task.Output) == `{"details":["`+c.detail+`"]}`
		if task.State != c.state || task.Dropped != c.isOutputDropped || isKept == c.isOutputDropped || len(task.Error) != c.errorLength {
			t.Errorf("task %d: %s, %d bytes of output, dropped %t, %d bytes of error", id+1, task.State, len(task.Output), task.Dropped, len(task.Error))
		}
	}
}

// TestADDIDeviceReplacesItsAttributes lets a device replace the attributes that it reported by HTTP, and then its attributes over DDI, by as many
// other attributes as a device may have. The limits apply to the stored attributes.
func TestADDIDeviceReplacesItsAttributes(t *testing.T) {
	t.Parallel()
	i, _ := startDev(t, t.TempDir())
	device := newDDIDevice(t, i, "one")
	i.sendReport(t, "one", `{"attributes":{"old":"1"}}`)
	for _, prefix := range []string{"a", "b"} {
		attributes := make(map[string]string)
		for n := range devices.MaxAttributeKeys {
			attributes[prefix+strconv.Itoa(n)] = "1"
		}
		data, _ := json.Marshal(attributes) // texts always marshal
		device.expect("PUT", "configData", `{"mode":"replace","data":`+string(data)+`}`, "200")
		var stored operators.Device
		must.Succeed(t, json.Unmarshal(i.callOperator(t, "GET", "/v1/devices/one", ""), &stored))
		var got map[string]string
		if err := json.Unmarshal(stored.Attributes, &got); err != nil || !maps.Equal(got, attributes) {
			t.Errorf("%v, got %v, want %v", err, got, attributes)
		}
	}
	device.expect("PUT", "configData", `{"data":{"more":"1"}}`, "400*attributes_too_large*")
}
