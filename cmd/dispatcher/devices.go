package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func devicesCommand() *cobra.Command {
	o := &operatorFlags{}
	d := o.deviceCommands()
	list := listSpec{path: operators.Path("devices"), columns: newColumns("ID", "LAST SEEN", "BLOCKED", "OWN TOKEN", "TAGS", "ATTRIBUTES")}
	verbs := o.newListCommands(list, "List devices by id, or by their latest report", addDeviceFilters)
	verbs = append(verbs, d.requestCommand("get", "Show a device", http.MethodGet, ""), createDeviceCommand(d), importDevicesCommand(o), checkDeviceCommand(o), explainDeviceCommand(d), setDeviceCommand(d), retagDevicesCommand(o), newDeviceTokenCommand(d),
		blockDeviceCommand(d, true, "block [DEVICE]", "Block a device, or all devices that match: grant no task, and ask them to stop the tasks that they run"),
		blockDeviceCommand(d, false, "unblock [DEVICE]", "Unblock a device, or all devices that match: grant tasks again"),
		deleteDeviceCommand(d))
	return o.groupCommand("devices", "Register, tag, block and find devices", verbs...)
}

func explainDeviceCommand(devices commandFactory) *cobra.Command {
	return devices.whyCommand("Show why a device gets no task, and what would change that", func(device string, found waitExplanation) string {
		if found.Task == nil {
			return "no task waits for device " + device
		}
		return fmt.Sprintf("the first task of device %s is task %d", device, *found.Task)
	})
}

func addDeviceFilters(command *cobra.Command) {
	addFieldFlags(command, operators.DeviceFilter{})
	flags := command.Flags()
	flags.StringToString("tag", nil, "only devices with all of these tags: area=330100,city=hz")
	flags.Var(new(model.Duration), "silent-for", "only devices that have not been seen for this time, or never: 90m, 1d, 2w")
	flags.Lookup("silent-for").DefValue = "" // the help shows no default
}

func createDeviceCommand(devices commandFactory) *cobra.Command {
	var tags map[string]string
	var profile *string
	var token *tokenFlag
	command := devices.objectCommand("create", "Register a device, and show its token once", func(s *session, device string) error {
		text, _, err := s.createWithSecret(operators.Request{
			Method: http.MethodPost, Path: operators.Path("devices"), Key: newIdempotencyKey(),
			Body: operators.NewDevice{ID: device, Tags: tags, Profile: *profile, Token: token.String()},
		}, "dispatcher devices token "+device)
		if err != nil {
			return err
		}
		return s.console.show(text)
	})
	command.ValidArgsFunction = cobra.NoFileCompletions
	command.Flags().StringToStringVar(&tags, "tag", nil, "tags: area=330100,city=hz")
	profile = addProfileFlag(devices.operatorFlags, command)
	token = addDeviceTokenFlag(command)
	return command
}

// addProfileFlag adds the flag --profile to command, and returns a pointer to the value of the flag, the name of a
// profile.
func addProfileFlag(operator *operatorFlags, command *cobra.Command) (profileName *string) {
	profile := command.Flags().String("profile", "", "profile whose policies apply to the starts of the device")
	operator.profileCommands().completeFlag(command, "profile")
	return profile
}

func setDeviceCommand(devices commandFactory) *cobra.Command {
	var tags map[string]string
	var untag []string
	command := devices.objectCommand("set", "Change the profile and the given tags of a device; other tags stay unchanged", func(s *session, device string) error {
		body, err := changedSettingsBody(s.cmd)
		if err != nil {
			return err
		}
		delete(body, "tag")
		delete(body, "untag")
		changed := map[string]any{}
		for name, value := range tags {
			changed[name] = value
		}
		for _, name := range untag {
			changed[name] = nil // removes the tag
		}
		if len(changed) > 0 {
			body["tags"] = changed
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPatch, Path: operators.Path("devices", device), Body: body})
	})
	addProfileFlag(devices.operatorFlags, command)
	addClearFlag(command, "no-profile", "profile", "remove the profile")
	command.Flags().StringToStringVar(&tags, "tag", nil, "tags to set: area=330100,city=hz")
	command.Flags().StringSliceVar(&untag, "untag", nil, "names of tags to remove")
	return command
}

func newDeviceTokenCommand(devices commandFactory) *cobra.Command {
	command := devices.objectCommand("token", "Create a new token for a device, and show it once", func(s *session, device string) error {
		return s.sendFlags(http.MethodPost, operators.Path("devices", device, "token"))
	})
	command.Flags().Duration("overlap", 24*time.Hour, "how long older tokens of the device stay valid; 0: they are revoked at once")
	addDeviceTokenFlag(command)
	return command
}

// blockDeviceCommand returns the command `devices block`, or `devices unblock` if blocked is false.
func blockDeviceCommand(devices commandFactory, blocked bool, usageLine, shortHelp string) *cobra.Command {
	verb, _, _ := strings.Cut(usageLine, " ")
	bulk, reason := &bulkFlags{}, ""
	command := &cobra.Command{
		Use: usageLine, Short: shortHelp, Args: cobra.MaximumNArgs(1), ValidArgsFunction: devices.completeNames(1),
		RunE: devices.withSession(func(s *session, args []string) error {
			if len(args) == 0 {
				return bulk.changeDevices(s.console, strings.ToUpper(verb[:1])+verb[1:], verb+"ed", func(filter operators.DeviceFilter, dryRun bool) (operators.DevicesChanged, error) {
					return s.Devices.SetBlockedMatching(s.cmd.Context(), filter, blocked, reason, dryRun)
				})
			}
			if bulk.hasSelection() {
				return usageError{errors.New("give either one device or filters; --dry-run needs filters")}
			}
			return s.sendAndShow(operators.Request{Method: http.MethodPost, Path: operators.Path("devices", args[0], verb), Body: operators.PauseReason{Reason: reason}})
		}),
	}
	bulk.addTo(command, devices.operatorFlags)
	command.Flags().StringVar(&reason, "reason", "", "reason; the log and the page of the device show it")
	return command
}

func deleteDeviceCommand(devices commandFactory) *cobra.Command {
	var options operators.Deletion
	bulk := &bulkFlags{}
	command := &cobra.Command{
		Use: "delete [DEVICE]", Short: "Delete a device and its tokens, or all devices that match",
		Long: `Delete a device and its tokens, or all devices that match the filters:

  dispatcher devices delete --registered-by fleet:1a2b3c4d --created-since 2d

The devices that match are counted first. Devices with open tasks are kept, unless
--cancel is given.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: devices.completeNames(1),
		RunE: devices.withSession(func(s *session, args []string) error {
			if len(args) == 0 {
				return bulk.changeDevices(s.console, "Delete", "deleted", func(filter operators.DeviceFilter, dryRun bool) (operators.DevicesChanged, error) {
					return s.Devices.DeleteMatching(s.cmd.Context(), filter, options, dryRun)
				})
			}
			if bulk.hasSelection() || options.Refuse {
				return usageError{errors.New("give either one device or filters; --dry-run and --refuse need filters")}
			}
			q := operators.Query()
			if options.Cancel {
				q.Set("cancel", "true")
			}
			return s.sendAndShow(operators.Request{Method: http.MethodDelete, Path: operators.Path("devices", args[0]), Query: q})
		}),
	}
	bulk.addTo(command, devices.operatorFlags)
	command.Flags().BoolVar(&options.Cancel, "cancel", false, "also delete devices with open tasks: waiting tasks are cancelled, and a device is asked to stop a dispatched task")
	command.Flags().BoolVar(&options.Refuse, "refuse", false, "only an operator can register these ids again, no fleet token")
	return command
}

func importDevicesCommand(operator *operatorFlags) *cobra.Command {
	var file, format, existing string
	command := &cobra.Command{
		Use: "import -f FILE", Short: "Register the devices of a file, and print their tokens once",
		Long: `Register the devices of a file, up to 100,000, all or none, and print their
tokens as CSV (--output json: one JSON object per line). They are shown only once:

  dispatcher devices import -f devices.csv > tokens.csv

A CSV file begins with a header: device, then the names of tags, and :profile for
the profile. NDJSON has one line for each device, such as
{"id":"ar-7","profile":"meter","tags":{"area":"330100"}}.`,
		Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error {
			r := operators.Request{Method: http.MethodPost, Path: operators.Path("devices"), Query: operators.Query("existing", existing), Key: newIdempotencyKey(), Accept: operators.TypeCSV}
			if s.console.isJSON {
				r.Accept = operators.TypeNDJSON
			}
			if err := attachFile(&r, file, format, s.console.in); err != nil {
				return err
			}
			r.NoRetry = true // a second answer would contain no tokens
			err := s.Copy(s.cmd.Context(), r, s.console.out)
			if operators.IsResponseLost(err) || errors.Is(err, context.Canceled) {
				return advisedError{err, "the devices may have been created, and their tokens are lost; to create new tokens for all: dispatcher devices import --existing rotate -f " + file}
			}
			return err
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "devices as CSV or NDJSON; -: standard input")
	command.Flags().StringVar(&format, "format", "", "format of the file: csv or ndjson (default: from its name)")
	command.Flags().StringVar(&existing, "existing", "", "what to do with devices that already exist: refuse the file (default), skip them, update their tags and profile, or rotate: create one more token for each")
	completeFlagValues(command, "format", "csv", "ndjson")
	completeFlagValues(command, "existing", "refuse", "skip", "update", "rotate")
	return requireFlag(command, "file")
}
