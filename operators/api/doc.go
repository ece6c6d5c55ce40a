// Package api serves the dispatcher over HTTP: device reports (plain net/http, the hot path), the operators' API (OpenAPI
// 3.1, generated from the code), health, readiness and metrics.
//
// Each noun of the operators' API (pools, batches, tasks, ...) is a type that holds the dependencies of its operations and
// registers them. API combines these types.
//
// The body of every error is application/problem+json with a stable code. Internal causes are logged and never sent.
// problem.go is the only place that maps errors to responses.
package api
