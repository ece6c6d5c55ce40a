// Package api is the dispatcher over HTTP: device reports (plain net/http, the
// hot path), the operators' API (OpenAPI 3.1, described by its own code),
// health, readiness and metrics.
//
// Each noun of the operators' API (pools, batches, tasks, ...) is a type that holds
// what its operations need and registers them; API assembles these types.
//
// Every error is application/problem+json with a stable code; what went wrong
// inside is logged, never shown. Errors are mapped in one place, problem.go.
package api
