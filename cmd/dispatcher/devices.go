package main

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

func newDevices() *cobra.Command {
	o := &operator{}
	d := o.devices()
	verbs := o.addList(listSpec{
		path: operators.Path("devices"), filters: deviceFilters,
		columns: []column{
			memberColumn("ID", "id"), memberColumn("LAST SEEN", "last_seen"), memberColumn("BLOCKED", "blocked"), memberColumn("OWN TOKEN", "own_token"),
			memberColumn("TAGS", "tags"), memberColumn("ATTRIBUTES", "attributes"),
		},
	}, "List devices by id, or those that reported last", addDeviceFilters)
	verbs = append(verbs, d.requestCommand("get", "Show a device", http.MethodGet, ""), createDevice(d), importDevices(o), setDevice(d), retagDevices(o), newDeviceToken(d),
		d.requestCommand("block", "Grant a device nothing, and tell it to stop what it runs", http.MethodPost, "/block"),
		d.requestCommand("unblock", "Grant a blocked device tasks again", http.MethodPost, "/unblock"),
		deleteDevice(d))
	return o.newGroup("devices", "Register, tag, block and find devices", verbs...)
}

func addDeviceFilters(command *cobra.Command) {
	flags := command.Flags()
	flags.StringToString("tag", nil, "only with all of these tags: area=330100,city=hz")
	flags.String("blocked", "", "true or false: only those that are, or are not")
	flags.String("profile", "", "only those with this profile")
	flags.String("prefix", "", "only ids with this prefix")
	flags.String("part", "", "only ids with this in them, in upper or lower case; not with --silent-for")
	flags.Var(new(model.Duration), "silent-for", "only those that were not seen for so long, or never: 90m, 1d, 2w")
	flags.Lookup("silent-for").DefValue = "" // the help shows no default
	flags.Int("recent", 0, "only so many that reported last, newest first, 1 to 1000; without other filters")
	complete(command, "blocked", "true", "false")
}

// deviceFilters returns the query for the flags of addDeviceFilters. A device has to match all of
// them.
func deviceFilters(flags *pflag.FlagSet) url.Values {
	q := flagQuery(flags, "blocked", "prefix", "part", "profile")
	if recent, _ := flags.GetInt("recent"); recent != 0 {
		q.Set("recent", strconv.Itoa(recent))
	}
	if silent, _ := flags.Lookup("silent-for").Value.(*model.Duration); silent != nil && *silent != 0 {
		q.Set("silent_for_ms", strconv.FormatInt(time.Duration(*silent).Milliseconds(), 10))
	}
	tags, _ := flags.GetStringToString("tag")
	for name, value := range tags {
		q.Add("tag", name+":"+value)
	}
	return q
}

func createDevice(d noun) *cobra.Command {
	var tags map[string]string
	var profile string
	command := d.objectCommand("create", "Register a device, and show its token once", func(s *session, device string) error {
		text, _, err := s.createWithSecret(operators.Request{
			Method: http.MethodPost, Path: operators.Path("devices"), Key: newIdempotencyKey(), Body: operators.NewDevice{ID: device, Tags: tags, Profile: profile},
		}, "dispatcher devices token "+device)
		if err != nil {
			return err
		}
		return s.console.show(text)
	})
	command.ValidArgsFunction = cobra.NoFileCompletions
	command.Flags().StringToStringVar(&tags, "tag", nil, "tags: area=330100,city=hz")
	profileFlag(d.operator, command, &profile)
	return command
}

func profileFlag(o *operator, command *cobra.Command, profile *string) {
	command.Flags().StringVar(profile, "profile", "", "profile whose policies hold for its starts")
	o.profiles().completeFlag(command, "profile")
}

func setDevice(d noun) *cobra.Command {
	var tags map[string]string
	var untag []string
	var profile string
	var removeProfile bool
	command := d.objectCommand("set", "Change the profile of a device, and the tags that are given; the others stay", func(s *session, device string) error {
		merge := map[string]*string{}
		for name, value := range tags {
			merge[name] = &value
		}
		for _, name := range untag {
			merge[name] = nil
		}
		var body operators.DevicePatch
		if len(merge) > 0 {
			body.Tags = operators.Set(merge)
		}
		if s.cmd.Flags().Changed("profile") || removeProfile {
			body.Profile = operators.Set(profile) // an empty profile removes the profile
		}
		if body == (operators.DevicePatch{}) {
			return usageError{errors.New("nothing to change: give at least one of --tag, --untag, --profile, --no-profile")}
		}
		return s.sendAndShow(operators.Request{Method: http.MethodPatch, Path: operators.Path("devices", device), Body: body})
	})
	profileFlag(d.operator, command, &profile)
	command.Flags().BoolVar(&removeProfile, "no-profile", false, "no profile any more")
	command.MarkFlagsMutuallyExclusive("profile", "no-profile")
	command.Flags().StringToStringVar(&tags, "tag", nil, "tags to set: area=330100,city=hz")
	command.Flags().StringSliceVar(&untag, "untag", nil, "names of tags to take away")
	return command
}

func newDeviceToken(d noun) *cobra.Command {
	overlap := 24 * time.Hour
	command := d.objectCommand("token", "Make a new token of a device, and show it once", func(s *session, device string) error {
		return s.sendAndShow(operators.Request{
			Method: http.MethodPost, Path: operators.Path("devices", device, "token"), Body: operators.Rotation{OverlapMS: new(overlap.Milliseconds())},
		})
	})
	command.Flags().DurationVar(&overlap, "overlap", overlap, "how long its older tokens go on; 0: they end at once")
	return command
}

func deleteDevice(d noun) *cobra.Command {
	var cancel bool
	command := d.objectCommand("delete", "Delete a device and its tokens", func(s *session, device string) error {
		q := url.Values{}
		if cancel {
			q.Set("cancel", "true")
		}
		return s.sendAndShow(operators.Request{Method: http.MethodDelete, Path: operators.Path("devices", device), Query: q})
	})
	command.Flags().BoolVar(&cancel, "cancel", false, "also with open tasks: those that wait are cancelled, what runs is asked to stop")
	return command
}

func importDevices(o *operator) *cobra.Command {
	var file, format, existing string
	command := &cobra.Command{
		Use: "import -f FILE", Short: "Register the devices of a file, and print their tokens once",
		Long: `Register the devices of a file, up to 100,000, all or none, and print their
tokens as CSV (--output json: a JSON object a line). They are shown this once:

  dispatcher devices import -f devices.csv > tokens.csv

A CSV file begins with a header: device, then the names of tags, and :profile for
the profile. NDJSON has a line as {"id":"ar-7","tags":{"area":"330100"}} for each
device, and "profile" in it.`,
		Args: cobra.NoArgs,
		RunE: o.withSession(func(s *session, _ []string) error {
			r := operators.Request{Method: http.MethodPost, Path: operators.Path("devices"), Query: operators.Query("existing", existing), Key: newIdempotencyKey(), Accept: operators.TypeCSV}
			if s.console.isJSON {
				r.Accept = operators.TypeNDJSON
			}
			var err error
			if r.ContentType, err = mediaType(file, format); err != nil {
				return err
			}
			if err := openFile(&r, file, s.console.in); err != nil {
				return err
			}
			r.NoRetry = true // a second answer would contain no tokens
			err = s.Copy(s.cmd.Context(), r, s.console.out)
			if operators.IsResponseLost(err) {
				return advisedError{err, "perhaps they were created, and their tokens are lost; new ones for all: dispatcher devices import --existing rotate -f " + file}
			}
			return err
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "devices as CSV or NDJSON; -: standard input")
	command.Flags().StringVar(&format, "format", "", "of the file: csv or ndjson (default: by its name)")
	command.Flags().StringVar(&existing, "existing", "", "devices that exist: refuse (default) the file; skip them; update their tags and profile; rotate: give them one more token")
	complete(command, "format", "csv", "ndjson")
	complete(command, "existing", "refuse", "skip", "update", "rotate")
	return requireFlag(command, "file")
}
