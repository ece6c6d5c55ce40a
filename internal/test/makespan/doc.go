// Package makespan measures how long a batch takes against the time that no
// dispatcher can beat: tasks x work / slots. It runs the program and real
// servers, a simulated fleet on the other side, and prints a table; see
// docs/benchmarks.md. It holds nothing but tests, and, in baseline, what the
// program is compared with.
package makespan
