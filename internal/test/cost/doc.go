// Package cost counts what a report, a poll over DDI, a cycle and a batch need in Postgres, in Redis and in memory. It
// runs a fixed script and compares the figures with testdata/cost.txt. The test fails if a figure changes. The package
// contains only tests.
package cost
