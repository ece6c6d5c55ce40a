package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

func applyPoolsCommand(operator *operatorFlags) *cobra.Command {
	var file string
	var dryRun bool
	command := &cobra.Command{
		Use: "apply -f FILE", Short: "Create and change pools according to a YAML file",
		Long: `Create and change pools according to a YAML file:

  pools:
    - name: ar:330100
      capacity: 60
      lease: 5m
      paused: false
      windows: [{cron: "0 1 * * *", duration: 4h, timezone: Asia/Shanghai}]
      limits: [{name: starts, per: pool, algorithm: sliding, windows: [{max: 30, per_ms: 60000}]}]

A setting that the file leaves out is not changed. A new pool needs a capacity, and
gets the defaults of its other settings. "pools export --format yaml" writes such a file.
Pools that the file does not name are not changed. The whole file is checked before the
first change. If the server refuses a change, the command stops: earlier changes remain,
and the same file can be applied again.`,
		Args: cobra.NoArgs,
		RunE: operator.withSession(func(s *session, _ []string) error {
			wanted, err := readPoolFile(file, s.console.in)
			if err != nil {
				return err
			}
			return s.applyPools(wanted, dryRun)
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "the YAML file; -: standard input")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "show the changes, but make none")
	return requireFlag(command, "file")
}

// poolChange is the change that apply makes to one pool.
type poolChange struct {
	Pool    string        `json:"pool"`
	Action  string        `json:"action"`
	Changes []fieldChange `json:"changes,omitempty"`
	Warned  []string      `json:"warnings,omitempty"`

	request operators.Request
}

// The actions of apply.
const (
	actionCreated   = "created"
	actionChanged   = "changed"
	actionUnchanged = "unchanged"
)

// fieldChange is the change of one field of a pool. From is nil if the pool is new.
type fieldChange struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from,omitempty"`
	To    json.RawMessage `json:"to"`
}

// applyPools makes the pools on the server equal to wanted. The server checks all changes before the first change is
// made. So a file with an error changes nothing, and a dry run reports the same errors as a real run.
func (s *session) applyPools(wanted []poolSettings, dryRun bool) error {
	existing, err := s.readPools()
	if err != nil {
		return err
	}
	changes := make([]poolChange, len(wanted))
	if _, err := s.forEachPool(wanted, func(i int) error {
		changes[i], err = s.checkPool(wanted[i], existing[wanted[i].Name])
		return err
	}); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if dryRun {
		return s.writeChanges("Nothing was changed. The changes would be: ", changes)
	}
	done, err := s.forEachPool(wanted, func(i int) error {
		if changes[i].Action == actionUnchanged {
			return nil
		}
		_, err := s.Call(s.cmd.Context(), changes[i].request)
		return err
	})
	if err != nil {
		return errors.Join(err, s.writeChanges("Stopped: ", changes[:done]))
	}
	return s.writeChanges("", changes)
}

func (s *session) readPools() (poolByName map[string]jsonObject, err error) {
	existing := map[string]jsonObject{}
	list, _ := s.List(s.cmd.Context(), operators.Path("pools"), nil, 0)
	for text, err := range list {
		if err != nil {
			return nil, err
		}
		pool, err := decodeObject(text)
		if err != nil {
			return nil, err
		}
		existing[pool.stringMember("name")] = pool
	}
	return existing, nil
}

// forEachPool calls run with the index of each pool and shows the progress. It stops when run returns an error. done is
// the number of calls that succeeded.
func (s *session) forEachPool(pools []poolSettings, run func(i int) error) (done int, err error) {
	progress := terminal.NewProgress(s.console.errs)
	defer progress.Clear()
	for i, pool := range pools {
		progress.Show("%d of %d pools", i, len(pools))
		if err := run(i); err != nil {
			return i, fmt.Errorf("pool %s: %w", pool.Name, err)
		}
	}
	return len(pools), nil
}

// checkPool returns the change that makes a pool equal to wanted. existing is the pool on the server. If it is nil, the
// change creates the pool. checkPool sends the change to the server as a dry run, and writes the warnings of the server
// as messages.
func (s *session) checkPool(wanted poolSettings, existing jsonObject) (poolChange, error) {
	change := poolChange{Pool: wanted.Name, Action: actionUnchanged, request: operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", wanted.Name), Body: wanted}}
	if existing == nil {
		change.Action, change.request.Method = actionCreated, http.MethodPut
	}
	check := change.request
	check.Query = url.Values{"dry_run": {"true"}}
	var given, after jsonObject
	text, err := readAnswer(s.cmd.Context(), s.Client, check, &after)
	if err != nil {
		return change, err
	}
	if err := convertJSON(wanted, &given); err != nil {
		return change, err
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !bytes.Equal(existing[name], after[name]) {
			change.Changes = append(change.Changes, fieldChange{Field: name, From: existing[name], To: after[name]})
		}
	}
	if existing != nil && len(change.Changes) > 0 {
		change.Action = actionChanged
	}
	if change.Action != actionUnchanged {
		change.Warned = s.console.writeWarnings("pool "+wanted.Name+": ", text)
	}
	return change, nil
}

// writeChanges writes the changes as a table, and a message that begins with prefix and contains the numbers of
// changes. The table leaves out pools without a change.
func (s *session) writeChanges(prefix string, changes []poolChange) error {
	writer := s.console.newListWriter(append(newColumns("POOL", "ACTION"), tableColumn{"CHANGES", describeChanges}))
	counts := map[string]int{}
	for _, change := range changes {
		counts[change.Action]++
		if change.Action == actionUnchanged && !s.console.isJSON {
			continue
		}
		text, err := json.Marshal(change)
		if err == nil {
			err = writer.writeEntry(text)
		}
		if err != nil {
			return err
		}
	}
	s.console.writeMessage("%s%d created, %d changed, %d unchanged", prefix, counts[actionCreated], counts[actionChanged], counts[actionUnchanged])
	return writer.finish()
}

// describeChanges returns the text of the cell for a change of a pool, such as: capacity 60 -> 80, lease 5m.
func describeChanges(change jsonObject) string {
	var changes []fieldChange
	_ = json.Unmarshal(change["changes"], &changes) // cannot fail: this program encoded it
	texts := make([]string, len(changes))
	for i, c := range changes {
		from := ""
		if c.From != nil {
			from = cmp.Or(terminal.FormatValue(c.Field, c.From), "none") + " -> "
		}
		texts[i] = terminal.Label(c.Field) + " " + from + cmp.Or(terminal.FormatValue(c.Field, c.To), "none")
	}
	return strings.Join(texts, ", ")
}
