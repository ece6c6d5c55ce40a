package check

import (
	"fmt"
	"slices"
)

// The states of a Finding.
const (
	Passed       = "passed"
	Failed       = "failed"
	NotSeen      = "not_seen"      // the device did nothing that shows whether it keeps the rule
	NotCheckable = "not_checkable" // no message can show whether the device keeps the rule
)

// RuleStarts is the rule that a device starts a granted task. Its state stays NotSeen if the device does not run the lab task.
const RuleStarts = "starts"

// Finding is the verdict on one rule.
type Finding struct {
	Rule     string `json:"rule"`
	State    string `json:"state"`
	Sentence string `json:"sentence"`           // the sentence of docs/protocol.md that states the rule
	Scenario string `json:"scenario,omitempty"` // the scenario in which the device broke the rule, or first kept it
	Found    string `json:"found,omitempty"`    // how the device broke the rule, or why the rule was not checked
	Sent     string `json:"sent,omitempty"`     // the first 600 bytes of the report that shows it
}

// newFindings returns one finding for each rule, in the state NotSeen or NotCheckable. mayShiftClock says whether the check can set the
// clock of the device.
func newFindings(mayShiftClock bool) (all []Finding) {
	for _, rule := range [][2]string{
		{"report-valid", "A report is refused as a whole with `body_too_large` (over 64 KiB), `too_deep`"},
		{"report-id", "id of the report: chosen by the device, at most 128 characters, never used again, also after a reboot"},
		{"credential", "Over HTTP a device sends `Authorization: Bearer <token>`"},
		{"paced", "The device does not report sooner unless it has something new to report."},
		{RuleStarts, "starts it, within the lease"},
		{"leave-first", "leave the external system # before anything is said about it"},
		{"report-at-once", "The device reports when its task has ended, at once if it can."},
		{"results-repeated", "The device repeats each result in every report until it has received any outcome for it"},
		{"outcome-final", "The device removes a result from its journal on any outcome."},
		{"unknown-ignored", "A device ignores unknown fields, treats an unknown `reason` as `none`, and treats an unknown `outcome` as final."},
		{"large-reply", "A reply has at most 64 KiB, and the payload of a task at most 32 KiB."},
		{"lost-reply", "If a reply was lost, the same grant is sent again, with the same token and `redelivered` one higher."},
		{"pause", "The *n*-th pause in a row is a random time between 0 and 1 s × 2^(n-1), at most the period."},
		{"started-once", "the token is not above the highest token that it has started since the boot (the journal counts) and neither its running task nor its journal has this grant"},
		{"old-token", "else if no work and now() < end and t.token > top:"},
		{"unsent-report", "The device drops a grant if it has not sent the report named in `re` since its boot"},
		{"late-grant", "since its boot, if the lease is over, or"},
		{"lease-end", "stop work, leave the external system # whatever happened to the network"},
		{"lease-start", "**from when it first sent the report named in `re`**"},
		{"held", "The device may use the external system for `lease_ms` plus `held_ms`"},
		{"renews", "The device renews a lease by listing the task in `running`"},
		{"continues", "If the reply lists a running task in neither `renewed` nor `cancel`, the device continues the task until its lease ends."},
		{"cancel", "The device stops each task that the member `cancel` of a reply names, and reports at once."},
		{"too-large", "never sends the same bytes again. It sends its results one by one. A result that is refused alone is sent again without output, and is dropped if refused again."},
		{"too-large-waits", "Before each of these reports it waits `report_after_ms`"},
		{"refused-keeps", "keeps its results; waits `report_after_ms`, else `Retry-After`"},
		{"refused-waits", "waits `report_after_ms`, else `Retry-After`, else [the pause](#no-answer)"},
		{"refused-continues", "continues running work until the end of its lease"},
		{"no-reply", "it reports again a random 10 to 30 s after it sent the report (with [long poll](#push-and-long-poll) after the wait plus 10 s)"},
		{"reboot-restart", "a device that reboots before it has a result gets the same grant with the same token, and starts the task anew"},
		{"reboot-journal", "journal = results in flash # each kept until any outcome for it was seen"},
		{"clock", "It measures this time on a monotonic clock that also runs during sleep."},
		{"journal-synced", "journal = results in flash"},
	} {
		all = append(all, Finding{Rule: rule[0], State: NotSeen, Sentence: rule[1]})
	}
	clock, synced := &all[len(all)-2], &all[len(all)-1]
	if !mayShiftClock {
		clock.State, clock.Found = NotCheckable, "needs --clock-command"
	}
	synced.State, synced.Found = NotCheckable, "shown only by a power failure between a write and its sync"
	return all
}

// check records that the device kept the rule (isKept), or broke it. report is the report that shows this, or nil. format and args describe
// the failure. A later call does not replace a failure. After the end of a run, check records nothing, because a missing report is then no
// fault of the device.
func (r *run) check(rule string, isKept bool, report *exchange, format string, args ...any) {
	f := &r.findings[slices.IndexFunc(r.findings, func(f Finding) bool { return f.Rule == rule })]
	if f.State == Failed || f.State == Passed && isKept || r.isOver() {
		return
	}
	*f = Finding{Rule: rule, State: Passed, Sentence: f.Sentence, Scenario: r.scenario}
	if !isKept {
		f.State, f.Found = Failed, fmt.Sprintf(format, args...)
		if report != nil {
			f.Sent = string(report.body[:min(len(report.body), 600)])
		}
	}
}
