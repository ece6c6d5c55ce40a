package devices

// The codes of an Error: why a report is refused whole.
const (
	CodeBodyTooLarge       = "body_too_large"       // over MaxBody
	CodeTooDeep            = "too_deep"             // nested over MaxDepth
	CodeInvalidJSON        = "invalid_json"         // not JSON
	CodeTooManyResults     = "too_many_results"     // over MaxResults
	CodeTooManyRunning     = "too_many_running"     // over MaxRunning
	CodeInvalidField       = "invalid_field"        // a field of the report has the wrong type or length
	CodeAttributesTooLarge = "attributes_too_large" // over MaxAttributes or MaxAttributeKeys
	CodeInvalidDeviceID    = "invalid_device_id"
	CodeInvalidPool        = "invalid_pool"
	CodeInvalidTopic       = "invalid_topic"
)

// The codes of a bad entry (Invalid of Result and Running) and of an Ack.
const (
	CodeNotAnObject       = "not_an_object"
	CodeInvalidTask       = "invalid_task"
	CodeInvalidToken      = "invalid_token"
	CodeInvalidStatus     = "invalid_status"
	CodeInvalidError      = "invalid_error"
	CodeInvalidRetryAfter = "invalid_retry_after"
	CodeOutputDropped     = "output_dropped" // over MaxOutput: dropped, the status recorded
)
