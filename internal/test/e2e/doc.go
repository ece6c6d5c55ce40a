// Package e2e tests the built program as it is deployed: replicas of `dispatcher serve` on real Postgres and Redis, a simulated fleet,
// faults, and an external system that counts who is inside. The package contains only tests.
package e2e
