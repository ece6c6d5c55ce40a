package api

// The codes of problems: stable names for programs, listed in docs/protocol.md. An invalid report is refused with the
// codes of package devices.
const (
	codeAlreadyExists     = "already_exists"         // 409
	codeBodyIncomplete    = "body_incomplete"        // 408: the connection broke before the whole body had arrived
	codeNoRoom            = "no_room"                // 507: no space to store a body
	codeBodyTooLarge      = "body_too_large"         // 413
	codeBrokerUnavailable = "broker_unavailable"     // 503: nothing was changed; send the same request again
	codeBusyServer        = "busy_server"            // 503: too many concurrent reports
	codeForbidden         = "forbidden"              // 403: the role does not allow it
	codeDuplicateTask     = "duplicate_task"         // 422: with duplicates=refuse; the detail names both tasks
	codeLeaseLost         = "lease_lost"             // 409: the lease has ended or was taken back, or its holder must stop
	codeNoSlot            = "no_slot"                // 409: for a lease request that does not wait
	codeKeyInUse          = "idempotency_key_in_use" // 409: the first request with this key is still in progress
	codeKeyReused         = "idempotency_key_reused" // 422: a different request used this key
	codeInUse             = "in_use"                 // 409: devices still have this profile
	codeInternal          = "internal"               // 500
	codeInvalidField      = "invalid_field"          // 422: an invalid value
	codeInvalidLine       = "invalid_line"           // 422: an invalid line of a streamed batch or import; the detail has its number
	codeInvalidPath       = "invalid_path"           // 400
	codeInvalidRequest    = "invalid_request"        // 400: not JSON, or text that the database cannot store
	codeLimited           = "limited"                // 429: with status=429, a refused take
	codeLockedOut         = "locked_out"             // 429: too many wrong tokens came from the address
	codeMethodNotAllowed  = "method_not_allowed"     // 405
	codeNoTasks           = "no_tasks"               // 422: a batch without tasks
	codeNotFound          = "not_found"              // 404
	codeNotRetriable      = "not_retriable"          // 409: the task succeeded, its batch was cancelled, or its time has passed
	codeOneByOne          = "one_by_one"             // 409: an import cannot rotate a device's password at the broker
	codeOpenTasks         = "open_tasks"             // 409: the device or pool has open tasks
	codeOutcomeUnknown    = "outcome_unknown"        // 503: whether the change was committed is unknown; check this before sending it again
	codePayloadTooLarge   = "payload_too_large"      // 422
	codeUnauthenticated   = "unauthenticated"        // 401
	codeUnavailable       = "unavailable"            // 503
	codeUnknownDevice     = "unknown_device"         // 422: the device is not registered, and unknown_devices=refuse
	codeUnknownField      = "unknown_field"          // 400
	codeUnknownPool       = "unknown_pool"           // 422
	codeUnknownProfile    = "unknown_profile"        // 422
	codeUnsupportedMedia  = "unsupported_media_type" // 415
)
