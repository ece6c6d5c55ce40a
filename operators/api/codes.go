package api

// The codes of problems: stable names for programs, listed in docs/protocol.md.
// A report that does not fit is refused with the codes of package devices.
const (
	codeAlreadyExists     = "already_exists"         // 409
	codeBodyIncomplete    = "body_incomplete"        // 408: the body broke off
	codeNoRoom            = "no_room"                // 507: nowhere to keep a body
	codeBodyTooLarge      = "body_too_large"         // 413
	codeBrokerUnavailable = "broker_unavailable"     // 503: nothing was changed; ask for the same again
	codeBusyServer        = "busy_server"            // 503: too many reports at once
	codeForbidden         = "forbidden"              // 403: the role does not allow it
	codeDuplicateTask     = "duplicate_task"         // 422: with duplicates=refuse; both are named
	codeLeaseLost         = "lease_lost"             // 409: ended, taken back, or its holder is to stop
	codeNoSlot            = "no_slot"                // 409: for a lease that does not wait
	codeKeyInUse          = "idempotency_key_in_use" // 409: the first request with it is under way
	codeKeyReused         = "idempotency_key_reused" // 422: another request had it
	codeInUse             = "in_use"                 // 409: a profile that devices have
	codeInternal          = "internal"               // 500
	codeInvalidField      = "invalid_field"          // 422: a value that does not fit
	codeInvalidLine       = "invalid_line"           // 422: a line of a streamed batch or import; the number is named
	codeInvalidPath       = "invalid_path"           // 400
	codeInvalidRequest    = "invalid_request"        // 400: not JSON, or text that cannot be kept
	codeLimited           = "limited"                // 429: with status=429, a take that is refused
	codeLockedOut         = "locked_out"             // 429: wrong tokens came from the address
	codeMethodNotAllowed  = "method_not_allowed"     // 405
	codeNoTasks           = "no_tasks"               // 422: a batch of none
	codeNotFound          = "not_found"              // 404
	codeNotRetriable      = "not_retriable"          // 409: the task succeeded, its batch was cancelled, or its time is over
	codeOneByOne          = "one_by_one"             // 409: an import would rotate the password at the broker
	codeOpenTasks         = "open_tasks"             // 409: the device or pool has some
	codeOutcomeUnknown    = "outcome_unknown"        // 503: done or not; look before doing it again
	codePayloadTooLarge   = "payload_too_large"      // 422
	codeUnauthenticated   = "unauthenticated"        // 401
	codeUnavailable       = "unavailable"            // 503
	codeUnknownDevice     = "unknown_device"         // 422: not registered, and unknown_devices=refuse
	codeUnknownField      = "unknown_field"          // 400
	codeUnknownPool       = "unknown_pool"           // 422
	codeUnknownProfile    = "unknown_profile"        // 422
	codeUnsupportedMedia  = "unsupported_media_type" // 415
)
