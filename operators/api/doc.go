// Package api serves the dispatcher over HTTP: device reports (plain net/http, the hot path), the operators' API (OpenAPI
// 3.1, generated from the code), health, readiness and metrics.
//
// Each noun of the operators' API (pools, batches, tasks, ...) is a type that holds the dependencies of its operations and
// registers them. API combines these types. newOperation describes an operation and names the role that it needs. register
// adds an operation whose response is a body, registerResponse one with a status or headers of its own, registerList a list
// with its pages and its export, and registerDirect one that is called too often for huma. The types of requests and
// responses, with the rules for their fields, are in package operators.
//
// The body of every error is application/problem+json with a stable code. Internal causes are logged and never sent.
// problem.go is the only place that maps errors to responses. An operation can return a problem with a more exact detail
// instead of an error.
package api
