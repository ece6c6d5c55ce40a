// Package bench measures how many durable cycles (a task from grant to result) the dispatcher does per second, and
// how much processor time each process needs for a cycle (see docs/performance.md). It runs the built program on
// real servers. In the same run, for comparison, it measures job queues and a classic hand-written dispatcher (the
// type classicDispatcher). No test compares the figures on the page with a new measurement. The package is a module
// of its own, because the dispatcher does not depend on the job queues. It contains only tests.
package bench
