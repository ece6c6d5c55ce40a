// Package credentials decides who may act for a device: the bearer of a token of the device, the bearer of a fleet token, or a session that
// the broker admitted. It registers devices, creates their tokens, and updates the accounts at the broker. It also looks up operator tokens.
//
// Only hashes of tokens are stored. A replica keeps valid tokens in memory for a day, and reads every second which tokens were changed. If
// it could not read the changes for three seconds (trustedFor), it looks up each token in the ledger. So all replicas refuse a revoked
// token within five seconds.
//
// A session at the broker is checked when it begins. Its reports do not carry the token. They are refused if the device is blocked or has no
// valid token left. A replica remembers an admission until there are news of the device. The expiry of a token adds no news. This is safe
// because the newest token of a device never expires.
package credentials
