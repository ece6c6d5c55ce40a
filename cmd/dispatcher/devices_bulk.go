package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

// bulkFlags contains the flags of the commands that change all devices that match.
type bulkFlags struct {
	filter       operators.DeviceFilter
	createdSince timeFlag
	yes, dryRun  bool
}

// addTo adds the flags to command.
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
	complete(command, "blocked", "true", "false")
	operator.profiles().completeFlag(command, "profile")
}

// isGiven reports whether a filter or --dry-run is set. Both need a command without the name of a device.
func (b *bulkFlags) isGiven() bool {
	return !b.filter.IsEmpty() || b.createdSince.String() != "" || b.dryRun
}

// run counts the devices that match, asks for confirmation, and changes them. If dryRun is set, it only counts. verb and participle
// describe the change in messages, such as "Retag" and "retagged".
func (b *bulkFlags) run(output *console, verb, participle string, change func(filter operators.DeviceFilter, dryRun bool) (operators.DevicesChanged, error)) error {
	b.filter.CreatedSince = b.createdSince.value
	if b.filter.IsEmpty() {
		return usageError{errors.New("give at least one of --where, --prefix, --profile, --blocked, --registered-by, --created-since")}
	}
	done, err := change(b.filter, true)
	if err != nil || b.dryRun {
		return writeChanged(output, done, "would be "+participle, err)
	}
	if done.Devices > 0 {
		if err := output.confirm(b.yes, verb+" "+countText(int64(done.Devices), "device", "devices")); err != nil {
			return err
		}
		done, err = change(b.filter, false)
	}
	return writeChanged(output, done, participle, err)
}

// writeChanged writes the number of changed devices with the word action, such as "retagged". If err interrupted the change after some
// devices, it writes their number, too. It returns err.
func writeChanged(output *console, done operators.DevicesChanged, action string, err error) error {
	if err != nil && done.Devices == 0 {
		return err
	}
	if output.isJSON {
		return cmp.Or(writeJSON(output.out, done, jsonIndent), err)
	}
	if done.Kept > 0 {
		action += fmt.Sprintf("; %s with open tasks kept", countText(int64(done.Kept), "device", "devices"))
	}
	_, failed := fmt.Fprintln(output.out, countText(int64(done.Devices), "device", "devices"), action)
	return cmp.Or(failed, err)
}
