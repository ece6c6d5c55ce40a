// Package e2e tests the built program as it is deployed: replicas of `dispatcher serve` on a real Postgres and a
// real Redis, a simulated fleet, faults, and an external system that counts which devices are inside. The package
// contains only tests.
package e2e
