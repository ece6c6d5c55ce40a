package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

// batchFlags contains the flags of the command that creates a batch.
type batchFlags struct {
	fields *pflag.FlagSet // each flag sets a field of the batch

	abort        operators.Abort
	file, format string
	devices      []string
	tags         map[string]string
	mode         operators.QueueMode
	wait         bool
}

func createBatchCommand(operator *operatorFlags) *cobra.Command {
	b := &batchFlags{}
	command := &cobra.Command{
		Use: "create --pool POOL (-f FILE | --device ID... | --tag KEY=VALUE...)", Short: "Queue tasks: from a file, for named devices, or for all devices with certain tags",
		Long: `Queue tasks: one for each line of a file, for each named device, or for each
device that has all of the tags.

A CSV file begins with a header: device, then the members of each task's payload
(a column whose name ends with :json contains JSON), and :priority, :not_before and
:not_after for the settings of the task itself. NDJSON has one line for each task,
such as {"device":"ar-7","payload":{"streams":4},"priority":9}. The file is streamed.
Either all of its tasks are queued, or none.

With --wait it shows the progress until the batch has ended. The exit status is then 1
unless every task succeeded.`,
		Example: `  dispatcher batches create -f tasks.csv --pool ar:330100 --wait
  dispatcher batches create --pool ar:330100 --tag area=330100 --kind speedtest --payload '{"server":"st1"}' --dry-run`,
		Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error {
			r, err := b.newRequest(s.cmd, s.console.in)
			if err != nil {
				return err
			}
			return b.send(s, r)
		}),
	}
	b.addTo(command)
	operator.poolCommands().completeFlag(command, "pool")
	operator.deviceCommands().completeFlag(command, "device")
	completeFlagValues(command, "format", "csv", "ndjson")
	completeFlagValues(command, "unknown-devices", "allow", "refuse")
	command.MarkFlagsMutuallyExclusive("file", "device", "tag")
	command.MarkFlagsOneRequired("file", "device", "tag")
	command.MarkFlagsMutuallyExclusive("wait", "dry-run")
	return requireFlag(command, "pool")
}

func (b *batchFlags) addTo(command *cobra.Command) {
	b.fields = addFieldFlags(command, operators.NewBatch{})
	flags := command.Flags()
	flags.StringVarP(&b.file, "file", "f", "", "tasks as CSV or NDJSON; -: standard input")
	flags.StringVar(&b.format, "format", "", "format of the file: csv or ndjson (default: from its name)")
	flags.StringArrayVar(&b.devices, "device", nil, "a device that gets a task; may be repeated")
	flags.StringToStringVar(&b.tags, "tag", nil, "all devices that have these tags now: area=330100,city=hz")
	flags.Float64Var(&b.abort.Failure, "abort-failure", 0, "pause the batch if this share of the tried tasks failed: 0.2")
	flags.Int64Var(&b.abort.Min, "abort-min", 0, "number of tried tasks before --abort-failure applies (default 1)")
	flags.StringVar(&b.mode.UnknownDevices, "unknown-devices", "", "refuse: all devices must be registered (default allow)")
	flags.BoolVar(&b.mode.DryRun, "dry-run", false, "only check and count the tasks, queue nothing")
	flags.BoolVar(&b.wait, "wait", false, "wait until the batch has ended, and show its progress")
}

// newRequest returns the request that creates the batch. If the name of the file is "-", it reads the tasks from stdin.
func (b *batchFlags) newRequest(command *cobra.Command, stdin io.Reader) (operators.Request, error) {
	r := operators.Request{Method: http.MethodPost, Path: operators.Path("batches"), Query: operators.Query("unknown_devices", b.mode.UnknownDevices), Key: newIdempotencyKey()}
	if b.mode.DryRun {
		r.Query.Set("dry_run", "true")
	}
	fields, err := requestBody(b.fields)
	if err != nil {
		return r, err
	}
	switch hasShare := command.Flags().Changed("abort-failure"); {
	case hasShare:
		fields["abort"] = b.abort
	case command.Flags().Changed("abort-min"):
		return r, usageError{errors.New("--abort-min: only together with --abort-failure")}
	}
	switch {
	case b.file != "":
		if err := operators.AddToQuery(fields, r.Query); err != nil {
			return r, err
		}
		return r, attachFile(&r, b.file, b.format, stdin)
	case len(b.devices) > 0:
		fields["devices"] = b.devices
	default:
		fields["select"] = operators.Selection{Tags: b.tags}
	}
	r.Body = fields
	return r, nil
}

// mediaTypeOf returns the media type of a file of tasks or devices. If format is empty, the extension of the file name determines the type.
func mediaTypeOf(fileName, format string) (name string, err error) {
	if format == "" {
		format = strings.TrimPrefix(filepath.Ext(fileName), ".")
	}
	switch strings.ToLower(format) {
	case "csv":
		return operators.TypeCSV, nil
	case "ndjson", "jsonl":
		return operators.TypeNDJSON, nil
	}
	return "", usageError{fmt.Errorf("--format: csv or ndjson is required for %q", fileName)}
}

// attachFile makes request send the content of file, or of stdin if file is "-". format is the format of this content.
// The file is opened again each time the request is sent. Standard input can be read only once, so a request with stdin
// is sent only once.
func attachFile(request *operators.Request, file, format string, stdin io.Reader) (err error) {
	if request.ContentType, err = mediaTypeOf(file, format); err != nil {
		return err
	}
	if file == "-" {
		request.NoRetry = true
		request.OpenBody = func() (io.ReadCloser, error) { return io.NopCloser(stdin), nil }
		return nil
	}
	if _, err := os.Stat(file); err != nil {
		return usageError{fmt.Errorf("--file: %w", err)}
	}
	request.OpenBody = func() (io.ReadCloser, error) { return os.Open(file) }
	return nil
}

// newIdempotencyKey returns a random Idempotency-Key. A request with this key takes effect once, even if it is sent several times.
func newIdempotencyKey() string { return "cli-" + rand.Text() }

// send sends the request that creates the batch, and shows the answer. After a dry run it shows only the number of tasks,
// unless the output is JSON. With --wait it shows the progress instead of the answer, and returns an error if a task did
// not succeed.
func (b *batchFlags) send(s *session, request operators.Request) error {
	var made operators.BatchCreated
	var text json.RawMessage
	err := s.console.showWhile("The dispatcher checks the tasks", func() (err error) {
		text, err = readAnswer(s.cmd.Context(), s.Client, request, &made)
		return err
	})
	if err != nil {
		return err
	}
	if made.Unknown != nil { // the ids of unknown devices may be mistyped
		s.console.writeMessage("Warning: %s not registered, such as %s; to refuse them: --unknown-devices refuse",
			countText(made.Unknown.Tasks, "task is for a device that is", "tasks are for devices that are"), made.Unknown.First)
	}
	tasks, skipped := countText(made.Tasks, "task", "tasks"), ""
	if made.Skipped != nil {
		skipped = ", " + countText(*made.Skipped, "duplicate", "duplicates") + " skipped"
	}
	switch {
	case b.wait:
		s.console.writeWarnings("", text)
		s.console.writeMessage("batch %d: %s%s", made.ID, tasks, skipped)
		return newBatchWatch(s, strconv.FormatInt(made.ID, 10)).requireSuccess()
	case b.mode.DryRun && !s.console.isJSON:
		s.console.writeWarnings("", text)
		_, err := fmt.Fprintf(s.console.out, "%s would be queued%s\n", tasks, skipped)
		return err
	}
	return s.console.showWithWarnings(text, "unknown")
}
