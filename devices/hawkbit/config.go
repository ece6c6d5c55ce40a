package hawkbit

import (
	"encoding/json"
	"net/http"

	"github.com/fleetslots/dispatcher/devices"
)

// configBody has the attributes that a device sends about itself.
type configBody struct {
	Mode string                     `json:"mode"` // merge (also if absent), replace or remove
	Data map[string]json.RawMessage `json:"data"`
}

// patch returns the change of attributes as a merge patch (RFC 7396). stored has the current attributes of the device.
func (c configBody) patch(stored json.RawMessage) (mergePatch map[string]any, err error) {
	patch := make(map[string]any)
	switch c.Mode {
	case "", "merge", "remove":
	case "replace":
		present := make(map[string]json.RawMessage)
		_ = json.Unmarshal(stored, &present) // stored is an object or empty
		for name := range present {
			patch[name] = nil
		}
	default:
		return nil, &devices.Error{Reason: devices.ReasonInvalid, Code: devices.CodeInvalidField, Detail: "mode: must be merge, replace or remove"}
	}
	for name, value := range c.Data {
		if patch[name] = value; c.Mode == "remove" {
			patch[name] = nil
		}
	}
	return patch, nil
}

// putConfig handles the request in which a device sends its attributes.
func (x *exchange) putConfig() (answer, error) {
	var got configBody
	if err := x.readBody(&got); err != nil {
		return answer{}, err
	}
	newest, err := x.readAction()
	if err != nil {
		return answer{}, err
	}
	patch, err := got.patch(newest.Attributes)
	if err != nil {
		return answer{}, err
	}
	text, err := encodeJSON(patch)
	if err != nil {
		return answer{}, err
	}
	reply, err := x.handleReport(devices.Report{Attributes: text})
	if err != nil {
		return answer{}, err
	}
	if reply.Code != "" {
		return answer{}, &devices.Error{Reason: devices.ReasonInvalid, Code: reply.Code, Detail: reply.Detail}
	}
	return answer{status: http.StatusOK}, asUnavailable(x.Ledger.RecordAttributes(x.request.Context(), x.caller.Device))
}
