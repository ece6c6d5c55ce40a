// Package bench measures how many durable cycles a second the dispatcher does, and what a
// cycle costs each process; see docs/performance.md. It runs the built program on real
// servers, and beside it, in the same run, job queues and the plain classic. It is a module
// of its own, because the job queues are no dependency of the dispatcher, and holds
// nothing but tests.
package bench
