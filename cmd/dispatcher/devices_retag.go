package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// retagFlags contains the flags of the command devices retag.
type retagFlags struct {
	bulkFlags

	set, unset []string
}

func retagDevicesCommand(operator *operatorFlags) *cobra.Command {
	r := &retagFlags{}
	command := &cobra.Command{
		Use: "retag", Short: "Set or remove tags of all devices that match",
		Long: `Set or remove tags of all devices that match. Other tags stay unchanged:

  dispatcher devices retag --where site:berlin --set model:x2 --unset old

At least one filter is required. The devices are counted first. The audit log gets
one event for each changed device.`,
		Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error { return r.retagDevices(s) }),
	}
	r.addTo(command, operator)
	command.Flags().StringArrayVar(&r.set, "set", nil, "tag to set, name:value; may be repeated")
	command.Flags().StringArrayVar(&r.unset, "unset", nil, "name of a tag to remove; may be repeated")
	command.MarkFlagsOneRequired("set", "unset")
	return command
}

// retagDevices changes the tags of the devices that match.
func (r *retagFlags) retagDevices(s *session) error {
	change := operators.Retag{Set: map[string]string{}, Unset: r.unset}
	for _, tag := range r.set {
		name, value, ok := strings.Cut(tag, ":")
		if !ok {
			return usageError{fmt.Errorf("--set: %q is not name:value", tag)}
		}
		change.Set[name] = value
	}
	return r.changeDevices(s.console, "Retag", "retagged", func(filter operators.DeviceFilter, dryRun bool) (operators.DevicesChanged, error) {
		n, err := s.Devices.Retag(s.cmd.Context(), filter, change, dryRun)
		return operators.DevicesChanged{Devices: n}, err
	})
}
