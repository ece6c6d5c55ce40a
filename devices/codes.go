package devices

// The codes of an Error: why a whole report is refused.
const (
	CodeBodyTooLarge       = "body_too_large"       // the body is longer than MaxBody
	CodeTooDeep            = "too_deep"             // the body is nested deeper than MaxDepth
	CodeInvalidJSON        = "invalid_json"         // the body is not JSON
	CodeTooManyResults     = "too_many_results"     // the report has more than MaxResults results
	CodeTooManyRunning     = "too_many_running"     // the report has more than MaxRunning running tasks
	CodeInvalidField       = "invalid_field"        // a field of the report has the wrong type or length
	CodeAttributesTooLarge = "attributes_too_large" // the attributes have more than MaxAttributes bytes or MaxAttributeKeys keys
	CodeInvalidDeviceID    = "invalid_device_id"
	CodeInvalidPool        = "invalid_pool"
	CodeInvalidTopic       = "invalid_topic"
)

// The codes of an entry of a report: the values of Ack.Code and, if the entry is invalid, of Result.Invalid and Running.Invalid.
const (
	CodeNotAnObject       = "not_an_object"
	CodeInvalidTask       = "invalid_task"
	CodeInvalidToken      = "invalid_token"
	CodeInvalidStatus     = "invalid_status"
	CodeInvalidError      = "invalid_error"
	CodeInvalidRetryAfter = "invalid_retry_after"
	CodeOutputDropped     = "output_dropped" // The output is longer than MaxOutput and dropped. The entry is valid.
)
