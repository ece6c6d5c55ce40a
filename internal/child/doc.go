// Package child runs a command that must not outlive its right to run.
//
// The command and all that it starts are one process group, led by a guard: a small
// process that knows until when the group may run, and ends it then; also when this process
// hangs, and at once when it ends, even by SIGKILL. When the command has ended, what it left
// behind in the group is killed. A process that leaves the group on purpose (setsid) escapes.
// The guard's clock stands still while the machine sleeps.
//
// On a terminal the group is in the foreground, so the keys of the terminal reach it and
// not this process.
package child
