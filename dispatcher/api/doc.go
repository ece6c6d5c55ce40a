// Package api is the dispatcher over HTTP: device reports (plain net/http, the
// hot path), the operators' API (OpenAPI 3.1, described by its own code),
// health, readiness and metrics.
//
// Every error is application/problem+json with a stable code; what went wrong
// inside is logged, never shown. Errors are mapped in one place, problem.go.
package api
