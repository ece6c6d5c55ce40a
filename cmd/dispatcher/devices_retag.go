package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// retagFlags contains the flags of the command devices retag.
type retagFlags struct {
	filter      operators.DeviceFilter
	set, unset  []string
	yes, dryRun bool
}

// retagDevices returns the command `devices retag`, which changes the tags of many devices.
func retagDevices(operator *operatorFlags) *cobra.Command {
	r := &retagFlags{}
	command := &cobra.Command{
		Use: "retag", Short: "Set or remove tags of all devices that match",
		Long: `Set or remove tags of all devices that match. Other tags stay unchanged:

  dispatcher devices retag --where site:berlin --set model:x2 --unset old

At least one of --where, --prefix, --profile and --blocked is required. The devices are
counted first. The audit log gets one event for each changed device.`,
		Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error { return r.run(s.cmd.Context(), s.Devices, s.console) }),
	}
	flags := command.Flags()
	flags.StringArrayVar(&r.filter.Tags, "where", nil, "only devices with this tag, name:value; may be repeated: devices with all of the tags")
	flags.StringVar(&r.filter.Prefix, "prefix", "", "only devices whose id begins with this text")
	flags.StringVar(&r.filter.Profile, "profile", "", "only devices with this profile")
	flags.StringVar(&r.filter.Blocked, "blocked", "", "true: only blocked devices; false: only devices that are not blocked")
	flags.StringArrayVar(&r.set, "set", nil, "tag to set, name:value; may be repeated")
	flags.StringArrayVar(&r.unset, "unset", nil, "name of a tag to remove; may be repeated")
	flags.BoolVar(&r.dryRun, "dry-run", false, "only count the devices, change nothing")
	addYesFlag(command, &r.yes)
	complete(command, "blocked", "true", "false")
	command.MarkFlagsOneRequired("set", "unset")
	command.MarkFlagsOneRequired("where", "prefix", "profile", "blocked")
	operator.profiles().completeFlag(command, "profile")
	return command
}

// run counts the devices, asks for confirmation, and changes their tags. If dryRun is set, it only counts.
func (r *retagFlags) run(ctx context.Context, devices operators.Devices, output *console) error {
	change := operators.Retag{Set: map[string]string{}, Unset: r.unset}
	for _, tag := range r.set {
		name, value, ok := strings.Cut(tag, ":")
		if !ok {
			return usageError{fmt.Errorf("--set: %q is not name:value", tag)}
		}
		change.Set[name] = value
	}
	n, err := devices.Retag(ctx, r.filter, change, true)
	if err != nil || r.dryRun {
		return r.writeCount(output, n, "would be retagged", err)
	}
	if n > 0 {
		if err := output.confirm(r.yes, "Retag "+countText(int64(n), "device", "devices")); err != nil {
			return err
		}
		n, err = devices.Retag(ctx, r.filter, change, false)
	}
	return r.writeCount(output, n, "retagged", err)
}

// writeCount writes count, the number of devices, and what was done with them (action, such as "retagged"), also if err interrupted the
// change after some devices. It returns err.
func (r *retagFlags) writeCount(output *console, count int, action string, err error) error {
	if err != nil && count == 0 {
		return err
	}
	if output.isJSON {
		return cmp.Or(writeJSON(output.out, operators.Retagged{Devices: count}, jsonIndent), err)
	}
	_, failed := fmt.Fprintln(output.out, countText(int64(count), "device", "devices"), action)
	return cmp.Or(failed, err)
}
