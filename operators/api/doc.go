// Package api serves the dispatcher over HTTP: the operators' API (OpenAPI 3.1, generated from the code), health, readiness
// and metrics. It passes the reports of devices to their handler (package devices/http).
//
// # Guarantees
//
// guardRequests checks the text of the path and the query. Then middlewares check the token and the role (authorize), the query
// and the Idempotency-Key. A request with an unknown field or query parameter changes nothing. The transaction that makes a
// change also writes its event and the answer for its Idempotency-Key (package store).
//
// The body of every error of an operation is application/problem+json with a stable code. Internal causes are logged and never
// sent. problem.go maps errors to responses. An operation can return a problem with a more exact detail, for example with
// leaseProblem, takeProblem or slotNotHeldProblem.
//
// # Limits
//
// The sizes of bodies and the numbers of concurrent requests are limited (bodies.go, lists.go, export.go). Excess requests
// wait, and excess streams get 503 (see "Shares" in docs/protocol.md). Only batches and imports have bodies of more than 1 MiB. time_limit.go lists the operations
// with a time limit.
//
// # Operations
//
// Each resource of the operators' API (pools, batches, tasks, ...) has a type that holds the dependencies of its operations
// and registers the operations. API combines these types. The types of requests and responses, with the rules for their
// fields, are in package operators. These functions add an operation:
//   - routes.describeOperation describes it by its row in the table of operations (operators.Operation);
//   - register adds an operation whose response is only a body;
//   - registerResponse adds an operation that sets its own status or headers;
//   - registerList adds a list with its pages and its export, registerLive also a live stream;
//   - registerDirect adds an operation on a limit set that is called too often for huma.
package api
