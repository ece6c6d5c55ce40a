package main

import (
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func showLimitedCommand(pools commandFactory) *cobra.Command {
	command := pools.objectCommand("limited", "Show the subjects refused most by the policies of a pool, its batches and profiles", func(s *session, pool string) error {
		return s.showTable(operators.Path("pools", pool, "limited"), requestQuery(s.cmd.LocalNonPersistentFlags()), newColumns("POLICY", "SUBJECT", "TIMES"), "limited")
	})
	command.Long = "Show the subjects refused most by the policies of a pool, its batches and profiles, in\nthe current and the previous hour."
	addFieldFlags(command, operators.LimitedQuery{})
	return command
}

func showPoolUsageCommand(pools commandFactory) *cobra.Command {
	command := pools.objectCommand("usage", "Show the usage of the policies of a pool", func(s *session, pool string) error {
		return s.showUsage(operators.Path("pools", pool, "usage"), requestQuery(s.cmd.LocalNonPersistentFlags()))
	})
	command.Long = "Show the usage of the policies of a pool: the subjects with the highest usage, or the usage\nof one device, for the policies of the pool and of its profile that count by facts of the\ndevice and not by facts of its tasks."
	addFieldFlags(command, operators.UsageQuery{})
	return command
}

// showUsage shows the usage of the policies of a pool or of a limit set: one row for each policy and subject.
func (s *session) showUsage(path string, query url.Values) error {
	used := tableColumn{"USED", func(e jsonObject) string { return e.memberText("used") + "/" + e.memberText("max") }}
	return s.showTable(path, query, slices.Concat(newColumns("POLICY", "SUBJECT"), []tableColumn{used}, newColumns("ALLOWED=allows", "OF=owner"), []tableColumn{timeToResetColumn()}), "highest", "usage")
}

// timeToResetColumn returns the column with the time until the usage of a policy next decreases. A cell is empty if nothing
// is used.
func timeToResetColumn() tableColumn {
	return tableColumn{"RESETS IN", func(e jsonObject) string {
		var use operators.PolicyUse
		if e.decode(&use) != nil || use.ResetMS == 0 {
			return ""
		}
		return durationText(use.ResetMS)
	}}
}

func profilesCommand() *cobra.Command {
	o := &operatorFlags{}
	p := o.profileCommands()
	verbs := o.newListCommands(listSpec{path: operators.Path("profiles"), columns: newColumns("NAME", "LIMITS", "UPDATED=updated_at")}, "List profiles by name", nil)
	verbs = append(verbs, p.requestCommand("get", "Show a profile", http.MethodGet, ""), putPoliciesCommand(p, "Create a profile, or replace its settings", operators.ProfileSettings{}),
		p.requestCommand("delete", "Delete a profile that no device has", http.MethodDelete, ""))
	return o.groupCommand("profiles", "Limit how often devices start tasks, in each pool separately", verbs...)
}

// putPoliciesCommand returns the command `put` of profiles or limit sets. profilesOrLimitSets is this kind of object, and shortHelp is the
// help of the command. The command stores a list of policies under a name. It has a flag for each field of settings.
func putPoliciesCommand(profilesOrLimitSets commandFactory, shortHelp string, settings any) *cobra.Command {
	command := profilesOrLimitSets.objectCommand("put", shortHelp, func(s *session, name string) error {
		return s.sendFlags(http.MethodPut, operators.Path(profilesOrLimitSets.plural, name))
	})
	addFieldFlags(command, settings)
	addClearFlag(command, "no-limits", "limits", "remove all policies")
	command.MarkFlagsOneRequired("limits", "no-limits")
	return command
}
