// Package api serves the dispatcher over HTTP: device reports (plain net/http, the hot path), the operators' API (OpenAPI
// 3.1, generated from the code), health, readiness and metrics.
//
// Each resource of the operators' API (pools, batches, tasks, ...) has a type that holds the dependencies of its operations
// and registers the operations. API combines these types. The types of requests and responses, with the rules for their
// fields, are in package operators. These functions add an operation:
//   - routes.describeOperation describes it as its row in the table of operations (operators.Operation) says, with the role that it needs;
//   - register adds an operation whose response is only a body;
//   - registerResponse adds an operation that sets its own status or headers;
//   - registerList adds a list with its pages and its export;
//   - registerDirect adds an operation that is called too often for huma.
//
// The body of every error is application/problem+json with a stable code. Internal causes are logged and never sent. problem.go maps
// errors to responses. An operation can return a problem with a more exact detail instead of an error. For example, leaseProblem,
// takeProblem and slotNotHeldProblem convert errors of their operations.
package api
