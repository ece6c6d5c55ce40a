// Package child runs a command that must not outlive its right to run.
//
// The command and all processes that it starts form one process group. The leader of the group is a guard: a small process that knows how
// long the group may run, and ends it at that time, even if the parent process hangs. The guard also ends the group as soon as the parent
// process ends, even by SIGKILL. When the command has ended, the processes that it left in the group are killed. A process that leaves the
// group on purpose (setsid) escapes. The guard's clock does not advance while the machine sleeps.
//
// On a terminal, the group is in the foreground, so the signals of the terminal's keys reach the group and not the parent process.
package child
