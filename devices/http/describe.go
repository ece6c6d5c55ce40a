package http

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
)

// Describe adds the report operation of devices to an OpenAPI document. refusal describes its error responses.
func Describe(operations huma.API, refusal *huma.Response) {
	schemas := operations.OpenAPI().Components.Schemas
	reply := huma.SchemaFromType(schemas, reflect.TypeFor[devices.Reply]())
	report := huma.SchemaFromType(schemas, reflect.TypeFor[reportBody]())
	operations.OpenAPI().AddOperation(&huma.Operation{
		Method: http.MethodPost, Path: "/v1/devices/{device}/report", OperationID: "report",
		Summary:     "Send results and running tasks, and request a task",
		Description: "Any Content-Type; the body is JSON of at most 64 KiB and may be empty. Unknown fields are ignored.",
		Tags:        []string{"devices"},
		Security:    []map[string][]string{{"device": {}}},
		Parameters: []*huma.Param{
			{Name: "device", In: "path", Required: true, Schema: &huma.Schema{Type: "string", MaxLength: new(128)}},
			{
				Name: "Prefer", In: "header", Schema: &huma.Schema{Type: "string"}, Example: "wait=25",
				Description: "wait=25 (RFC 7240) lets an answer without a task wait for at most 25 seconds, or the server's limit if that is shorter. " +
					"The server answers as soon as there is a task. A newer report of the device ends the older one without a task.",
			},
		},
		RequestBody: &huma.RequestBody{Content: map[string]*huma.MediaType{"application/json": {Schema: report}}},
		Responses: map[string]*huma.Response{
			"200": {Description: "The reply", Headers: map[string]*huma.Param{
				"Preference-Applied": {Schema: &huma.Schema{Type: "string"}, Description: "wait=25: the answer could wait for 25 seconds; absent if Prefer is absent or too many answers wait already"},
			}, Content: map[string]*huma.MediaType{"application/json": {Schema: reply}}},
			"default": refusal,
		},
	})
}

// reportBody documents the body that devices.DecodeReport accepts. Its tags repeat the limits of package devices.
type reportBody struct {
	_          struct{}       `additionalProperties:"true"`
	ID         string         `json:"id,omitempty" maxLength:"128" doc:"Chosen by the device, unique over reboots; echoed in re"`
	Results    []reportResult `json:"results,omitempty" maxItems:"100"`
	Running    []reportRun    `json:"running,omitempty" maxItems:"100"`
	Accept     bool           `json:"accept,omitempty" default:"true" doc:"false: reporting only, nothing is granted"`
	Attributes map[string]any `json:"attributes,omitempty" doc:"Attributes to merge (RFC 7396) into those of the device"`
}

// reportResult documents an entry of the list results of a report.
type reportResult struct {
	_            struct{} `additionalProperties:"true"`
	Task         int64    `json:"task" minimum:"1"`
	Token        int64    `json:"token" minimum:"1"`
	Status       string   `json:"status" enum:"succeeded,failed,rejected,returned"`
	Output       any      `json:"output,omitempty" doc:"At most 32 KiB"`
	Error        string   `json:"error,omitempty"`
	RetryAfterMS int64    `json:"retry_after_ms,omitempty" minimum:"0" maximum:"86400000" doc:"Only with status returned: how long the device wants to wait before another attempt"`
}

// reportRun documents an entry of the list running of a report.
type reportRun struct {
	_        struct{} `additionalProperties:"true"`
	Task     int64    `json:"task" minimum:"1"`
	Token    int64    `json:"token" minimum:"1"`
	Progress float64  `json:"progress,omitempty" minimum:"0" maximum:"1"`
}
