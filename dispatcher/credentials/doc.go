// Package credentials decides who may act for a device: the bearer of a token of the device, the bearer of a
// fleet token, or a session that the broker admitted. It registers devices, creates their tokens, and updates
// the accounts at the broker.
//
// Only hashes of tokens are stored. A replica keeps valid tokens in memory for a day, and reads every second
// which tokens were changed. A revoked token is therefore refused by all replicas within five seconds.
package credentials
