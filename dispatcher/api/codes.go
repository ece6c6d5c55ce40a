package api

// The codes of problems: stable names for programs, listed in docs/protocol.md.
// A report that does not fit is refused with the codes of package devices.
const (
	codeAlreadyExists    = "already_exists"         // 409
	codeBodyIncomplete   = "body_incomplete"        // 408: the body broke off
	codeBodyTooLarge     = "body_too_large"         // 413
	codeBusyServer       = "busy_server"            // 503: too many reports at once
	codeForbidden        = "forbidden"              // 403
	codeInternal         = "internal"               // 500
	codeInvalidField     = "invalid_field"          // 422: a value that does not fit
	codeInvalidPath      = "invalid_path"           // 400
	codeInvalidRequest   = "invalid_request"        // 400: not JSON, or text that cannot be kept
	codeMethodNotAllowed = "method_not_allowed"     // 405
	codeNotFound         = "not_found"              // 404
	codeOutcomeUnknown   = "outcome_unknown"        // 503: done or not; look before doing it again
	codePayloadTooLarge  = "payload_too_large"      // 422
	codeUnauthenticated  = "unauthenticated"        // 401
	codeUnavailable      = "unavailable"            // 503
	codeUnknownField     = "unknown_field"          // 400
	codeUnknownPool      = "unknown_pool"           // 422
	codeUnsupportedMedia = "unsupported_media_type" // 415
)
