// Package makespan measures how long a fleet takes for a batch, compared with the time that no dispatcher can beat:
// tasks * work / slots. It runs the program, real servers and a simulated fleet, and prints a table (see
// docs/benchmarks.md). The package contains only tests. Its subpackage baseline implements a simpler method, with
// which the program is compared.
package makespan
