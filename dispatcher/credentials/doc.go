// Package credentials says who may act for a device: the bearer of a token of its own, of
// a fleet token, or a session that the broker let in. It registers devices, makes
// their tokens, and lets the accounts at the broker follow them.
//
// Only hashes of tokens are kept. A replica remembers valid tokens for a day, and reads
// each second which ones were changed: so a revoked one dies everywhere within five seconds.
package credentials
