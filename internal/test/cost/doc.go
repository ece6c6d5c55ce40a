// Package cost counts what a report, a cycle and a batch ask of Postgres, of Redis and of
// the memory, on a fixed script, and compares that with testdata/cost.txt: what makes
// them dearer is a red test. It holds nothing but tests.
package cost
