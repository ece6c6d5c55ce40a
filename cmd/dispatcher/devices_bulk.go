package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// bulkFlags contains the flags of the commands that change all devices that match.
type bulkFlags struct {
	filter       operators.DeviceFilter
	createdSince timeFlag
	yes, dryRun  bool
}

func (b *bulkFlags) addTo(command *cobra.Command, operator *operatorFlags) {
	flags := command.Flags()
	flags.StringArrayVar(&b.filter.Tags, "where", nil, "only devices with this tag, name:value; may be repeated: devices with all of the tags")
	flags.StringVar(&b.filter.Prefix, "prefix", "", "only devices whose id begins with this text")
	flags.StringVar(&b.filter.Profile, "profile", "", "only devices with this profile")
	flags.StringVar(&b.filter.Blocked, "blocked", "", "true: only blocked devices; false: only devices that are not blocked")
	flags.StringVar(&b.filter.RegisteredBy, "registered-by", "", "only devices that this operator token or fleet token (fleet:1a2b3c4d) registered; session: by a session at an MQTT broker")
	flags.Var(&b.createdSince, "created-since", "only devices that were registered at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z")
	flags.BoolVar(&b.dryRun, "dry-run", false, "only count the devices, change nothing")
	addYesFlag(command, &b.yes)
	completeFlagValues(command, "blocked", "true", "false")
	operator.profileCommands().completeFlag(command, "profile")
}

// hasSelection reports whether the user gave a filter or --dry-run. With these flags, the command must not name a device.
func (b *bulkFlags) hasSelection() bool {
	return !b.filter.IsEmpty() || b.createdSince.String() != "" || b.dryRun
}

// changeDevices changes the devices that match the filters, after a count and a confirmation (see bulkChange). verb and
// participle are words for the change in messages, such as "Retag" and "retagged".
func (b *bulkFlags) changeDevices(output *console, verb, participle string, change func(filter operators.DeviceFilter, dryRun bool) (operators.DevicesChanged, error)) error {
	b.filter.CreatedSince = b.createdSince.value
	if b.filter.IsEmpty() {
		return usageError{errors.New("give at least one of --where, --prefix, --profile, --blocked, --registered-by, --created-since")}
	}
	return bulkChange[operators.DevicesChanged]{
		send: func(dryRun bool) (operators.DevicesChanged, error) { return change(b.filter, dryRun) },
		question: func(counted operators.DevicesChanged) string {
			if counted.Devices == 0 {
				return ""
			}
			return verb + " " + countText(int64(counted.Devices), "device", "devices")
		},
		describe: func(changed operators.DevicesChanged, participle string) string {
			text := countText(int64(changed.Devices), "device", "devices") + " " + participle
			if changed.Kept > 0 {
				text += "; " + countText(int64(changed.Kept), "device", "devices") + " with open tasks kept"
			}
			return text
		},
		done: participle, wouldBe: "would be " + participle,
	}.confirmAndChange(output, b.yes, b.dryRun)
}
