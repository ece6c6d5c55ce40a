// Package credentials says who may act for a device: the bearer of a token of its own, of
// a fleet token, or a session that the broker let in. It registers devices, makes
// their tokens, and lets the accounts at the broker follow them.
//
// Only hashes of tokens are kept. The memory of a replica of a token is at most five
// seconds old, so a revoked one dies everywhere within that time.
package credentials
