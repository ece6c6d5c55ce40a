package api

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/fleetslots/dispatcher/devices/hawkbit"
	"github.com/fleetslots/dispatcher/store"
)

// deploymentWarnings returns the warnings about the payload of a new batch and the devices that speak hawkBit's DDI. unreadableTasks is the
// number of tasks that these devices cannot read. publicURL is the address under which devices reach the dispatcher. It may be empty.
func deploymentWarnings(batch store.Batch, unreadableTasks int64, publicURL string) (warnings []string) {
	payload, err := hawkbit.ParsePayload(batch.Payload)
	if unreadableTasks > 0 {
		why := "it has no member deployment, and the profiles of the devices do not allow metadata_only or it is longer than 256 bytes"
		if hasDeployment(batch.Payload) && err != nil {
			why = err.Error()
		}
		if err == nil {
			why = "their tasks have a payload of their own"
		}
		warnings = append(warnings, fmt.Sprintf("wrong_wire: %d tasks are for devices that report by hawkBit's DDI, and these devices cannot read the payload: %s", unreadableTasks, why))
	} else if err != nil && hasDeployment(batch.Payload) {
		warnings = append(warnings, "devices that report by hawkBit's DDI cannot read the payload: "+err.Error())
	}
	if hosts := payload.ForeignHosts(publicURL); err == nil && len(hosts) > 0 {
		warnings = append(warnings, "artifacts are on "+strings.Join(hosts, ", ")+": swupdate sends the token of the device to this host, unless it runs with --disable-token-for-dwl")
	}
	return warnings
}

// hasDeployment reports whether payload is a JSON object with the member deployment.
func hasDeployment(payload []byte) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(payload, &members) == nil && members["deployment"] != nil
}
