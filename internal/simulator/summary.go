package simulator

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Summary is the result of a simulation.
type Summary struct {
	Pool     string
	Capacity int
	Devices  int
	Tasks    int64 // tasks queued
	Ended    int64 // tasks in a terminal state
	Fleet    Stats
	External ExternalStats
	Breaches Breaches // violations that External counted and that late devices do not explain

	TasksWaited            time.Duration // time from the start of the run to the last poll that found a waiting task
	InsideWhileTasksWaited time.Duration // device-time spent inside until that poll
	Makespan               time.Duration // time until the last task ended; 0 means that some did not end
	Bound                  time.Duration // work of all tasks / capacity: no dispatcher can be faster
	Ideal                  time.Duration // makespan of an ideal dispatcher for the same tasks, see workload.idealMakespan; 0 with Config.Endless or Config.FillUntil

	Handoff Handoff
	// SlotIdle is the time in which slots were empty, summed over the slots. All its fields are 0 with Config.Endless or Config.FillUntil, and if a
	// task did not end.
	SlotIdle struct {
		Start   time.Duration // from the allowed start of the tasks to the first visit to a slot; for an unused slot, the whole run
		Between time.Duration // between two visits to a slot
		End     time.Duration // from the last visit to a slot until the end of the run
	}
	LongestWait time.Duration // longest time from the allowed start of a task to its first grant; with Config.Endless, only batches that have ended count; 0 means not measured
	MaxDelay    time.Duration // longest delay of a task's first grant after its due time (see longestDelays); 0 in a run for which SlotIdle is 0

	Comparison

	Unacknowledged int  // results without an outcome
	Interrupted    bool // the context ended first: tasks may be unfinished
}

// SlotUse returns the used share (0 to 1) of the slots' time while tasks were waiting: the total time that devices were
// inside, divided by the total time of all slots.
func (s *Summary) SlotUse() (share float64) {
	if s.TasksWaited <= 0 || s.Capacity < 1 {
		return 0
	}
	return float64(s.InsideWhileTasksWaited) / (float64(s.TasksWaited) * float64(s.Capacity))
}

// BoundRatio returns Makespan / Bound. It is at least 1 unless the run did not end.
func (s *Summary) BoundRatio() (ratio float64) {
	if s.Bound <= 0 {
		return 0
	}
	return float64(s.Makespan) / float64(s.Bound)
}

// DeniedPerGrant returns the number of reports that found no slot, divided by the number of grants.
func (s *Summary) DeniedPerGrant() (ratio float64) {
	return float64(s.Fleet.Denied) / float64(max(s.Fleet.Grants, 1))
}

// Err returns an error if a promise was broken. Promises about devices within their leases: the devices never exceed the
// capacity, never share a slot and never have a stale token. Promises about tasks: each task ends, is not lost, has at
// most one recorded result, and has the output in the device's journal. The server must also refuse malformed reports and
// follow the protocol. Long durations and results without an outcome are not errors.
func (s *Summary) Err() error {
	var errs []error
	check := func(broken bool, format string, args ...any) {
		if broken {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	b := s.Breaches
	check(b.OverCapacity > 0, "capacity %d exceeded %d times, by up to %d", s.Capacity, b.OverCapacity, b.MaxExcess)
	check(b.Shared > 0, "%d arrivals at a slot in use", b.Shared)
	check(b.Stale > 0, "%d arrivals with a stale token", b.Stale)
	check(s.countUnfinishedTasks() > 0, "%d of %d tasks did not end", s.countUnfinishedTasks(), s.Tasks)
	check(s.Lost > 0, "%d tasks lost", s.Lost)
	check(s.Differing > 0, "%d outputs differ from the journals", s.Differing)
	check(s.Fleet.GarbageAccepted > 0, "%d malformed reports were not refused", s.Fleet.GarbageAccepted)
	check(s.Fleet.Violations > 0, "%d replies break the protocol, first: %s", s.Fleet.Violations, s.Fleet.FirstViolation)
	for _, e := range s.Examples {
		errs = append(errs, errors.New(e))
	}
	return errors.Join(errs...)
}

// countUnfinishedTasks returns the number of tasks that did not end. It is 0 if the run was interrupted.
func (s *Summary) countUnfinishedTasks() int64 {
	if s.Interrupted {
		return 0
	}
	return s.Tasks - s.Ended
}

// Print writes the summary to out, as text for people who measure. It omits the makespan of a run that did not end.
func (s *Summary) Print(out io.Writer) error {
	f, x, b := s.Fleet, s.External, s.Breaches
	empty := max(s.TasksWaited*time.Duration(s.Capacity)-s.InsideWhileTasksWaited, 0) // slot-time that was empty while tasks were waiting
	lines := []string{
		fmt.Sprintf("pool %s   capacity %d   devices %d   tasks %d   ended %d", s.Pool, s.Capacity, s.Devices, s.Tasks, s.Ended),
		fmt.Sprintf("reports    %d sent, %d replies, %d lost, %d refused, %d errors", f.Reports, f.Replies, f.LostReplies, f.Refused, f.Errors),
		fmt.Sprintf("grants     %d started, %d redelivered, %d dropped, %d renewals, %d cancels", f.Grants, f.Redeliveries, f.Dropped, f.Renewals, f.Cancels),
		fmt.Sprintf("results    %d: %d recorded, %d duplicate, %d late, %d unknown, %d rejected, %d without an outcome",
			f.Results, f.Recorded, f.Duplicate, f.Late, f.Unknown, f.Rejected, s.Unacknowledged),
		fmt.Sprintf("faults     %d silent, %d leases ended (left up to %s late), %d reboots, %d of %d malformed reports refused",
			f.Silent, f.LeasesEnded, max(f.Overstay, 0).Round(time.Millisecond), f.Reboots, f.GarbageRefused, f.GarbageSent),
		fmt.Sprintf("inside     high-water mark %d of %d, %d over-limit instants, %d shared slots, %d stale tokens; within leases %d, %d and %d of these",
			x.HighWater, s.Capacity, x.OverLimitInstants, x.SharedSlots, x.StaleTokens, b.OverCapacity, b.Shared, b.Stale),
		s.slotUseLine(),
		fmt.Sprintf("idle       %.1f slot-seconds while tasks waited; at the start %.1f, between visits %.1f, at the end %.1f",
			empty.Seconds(), s.SlotIdle.Start.Seconds(), s.SlotIdle.Between.Seconds(), s.SlotIdle.End.Seconds()),
		fmt.Sprintf("handoff    slot left to next inside: %s; steps: notified %s, granted %s, entered %s; in the dispatcher %s",
			s.Handoff.Total, s.Handoff.Notified, s.Handoff.Granted, s.Handoff.Entered, s.Handoff.Server),
		fmt.Sprintf("waits      %.2f reports without a slot for each grant; longest wait %s, at most %s after its due time",
			s.DeniedPerGrant(), s.LongestWait.Round(10*time.Millisecond), s.MaxDelay.Round(10*time.Millisecond)),
	}
	if s.Makespan > 0 {
		lines = append(lines, fmt.Sprintf("makespan   %s, bound %s: %.3f of it; %s without any time between tasks",
			s.Makespan.Round(10*time.Millisecond), s.Bound.Round(10*time.Millisecond), s.BoundRatio(), s.Ideal.Round(10*time.Millisecond)))
	}
	return writeLines(out, append(lines, fmt.Sprintf("outputs    %d compared, %d differ, %d tasks lost", s.Compared, s.Differing, s.Lost)))
}

// PrintShort writes the figures of the summary that a new user needs to out.
func (s *Summary) PrintShort(out io.Writer) error {
	over := "never over the limit"
	if n := s.External.OverLimitInstants; n > 0 {
		over = fmt.Sprintf("%d times over the limit, %d of these within leases", n, s.Breaches.OverCapacity)
	}
	lines := []string{
		fmt.Sprintf("tasks      %d done, %d still open", s.Ended, s.Tasks-s.Ended),
		fmt.Sprintf("inside     at most %d devices at once, limit %d, %s", s.External.HighWater, s.Capacity, over),
	}
	if s.TasksWaited > 0 {
		lines = append(lines, s.slotUseLine())
	}
	if s.LongestWait > 0 {
		lines = append(lines, fmt.Sprintf("waits      longest wait of a task in the queue: %s", s.LongestWait.Round(100*time.Millisecond)))
	}
	return writeLines(out, lines)
}

func (s *Summary) slotUseLine() string {
	return fmt.Sprintf("slot use   %.1f %% while tasks waited (%s)", 100*s.SlotUse(), s.TasksWaited.Round(10*time.Millisecond))
}

func writeLines(out io.Writer, lines []string) error {
	_, err := fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}
