package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// applyPools returns the command `pools apply`.
func applyPools(operator *operatorFlags) *cobra.Command {
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
			wanted, err := readPools(file, s.console.in)
			if err != nil {
				return err
			}
			return poolUpdate{s.Client, s.console}.apply(s.cmd.Context(), wanted, dryRun)
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "the YAML file; -: standard input")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "show the changes, but make none")
	return requireFlag(command, "file")
}

// poolChange is the change that apply makes to one pool.
type poolChange struct {
	Pool    string        `json:"pool"`
	Action  string        `json:"action"` // created, changed or unchanged
	Changes []fieldChange `json:"changes,omitempty"`
	Warned  []string      `json:"warnings,omitempty"`
}

// fieldChange is the change of one field of a pool. From is nil if the pool did not have the field.
type fieldChange struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from,omitempty"`
	To    json.RawMessage `json:"to"`
}

// poolUpdate creates and changes pools according to a file.
type poolUpdate struct {
	client  *operators.Client
	console *console
}

// apply makes the pools on the server equal to entries, the pools of the file. It lets the server check all changes before it sends the
// first one. So a file with an error changes nothing, and a dry run reports the same errors as a real run.
func (u poolUpdate) apply(ctx context.Context, entries []poolFileEntry, dryRun bool) error {
	existing, err := u.listPools(ctx)
	if err != nil {
		return err
	}
	changes := make([]poolChange, len(entries))
	for i, pool := range entries {
		if changes[i], err = pool.diff(existing[pool.Name]); err != nil {
			return err
		}
	}
	if _, err := u.send(ctx, changes, true); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	prefix, done := "Nothing was changed. The changes would be: ", len(changes)
	if !dryRun {
		prefix = ""
		if done, err = u.send(ctx, changes, false); err != nil {
			prefix = "Stopped: "
		}
	}
	return errors.Join(err, u.writeChanges(prefix, changes[:done]))
}

// send sends the changes until the server refuses one. If dryRun is true, the server only checks them, and send stores its warnings in
// changes. done is the number of changes before the refused one, or of all changes.
func (u poolUpdate) send(ctx context.Context, changes []poolChange, dryRun bool) (done int, err error) {
	progress := terminal.NewProgress(u.console.errs)
	defer progress.Clear()
	for i := range changes {
		change := &changes[i]
		progress.Show("%d of %d pools", i, len(changes))
		if change.Action == actionUnchanged {
			continue
		}
		text, err := u.client.Call(ctx, change.request(dryRun))
		if err != nil {
			return i, fmt.Errorf("pool %s: %w", change.Pool, err)
		}
		if dryRun {
			progress.Clear()
			change.Warned = u.console.noteWarnings("pool "+change.Pool+": ", text)
		}
	}
	return len(changes), nil
}

// request returns the request that makes the change, or only checks it if dryRun is true.
func (c *poolChange) request(dryRun bool) operators.Request {
	body := entry{}
	for _, field := range c.Changes {
		body[field.Field] = field.To
	}
	r := operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", c.Pool), Body: body}
	if c.Action == actionCreated {
		r.Method = http.MethodPut
	}
	if dryRun {
		r.Query = url.Values{"dry_run": {"true"}}
	}
	return r
}

// writeChanges writes the changes, and notes their numbers after the text prefix. A table leaves out the pools that stay unchanged.
func (u poolUpdate) writeChanges(prefix string, changes []poolChange) error {
	writer := u.console.newListWriter([]column{memberColumn("POOL", "pool"), memberColumn("ACTION", "action"), {"CHANGES", describeChanges}})
	counts := map[string]int{}
	for _, change := range changes {
		counts[change.Action]++
		if change.Action == actionUnchanged && !u.console.isJSON {
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
	u.console.note("%s%d created, %d changed, %d unchanged", prefix, counts[actionCreated], counts[actionChanged], counts[actionUnchanged])
	return writer.finish()
}

// listPools returns all pools of the dispatcher by name.
func (u poolUpdate) listPools(ctx context.Context) (map[string]entry, error) {
	existing := map[string]entry{}
	entries, _ := u.client.List(ctx, operators.Path("pools"), nil, 0)
	for text, err := range entries {
		if err != nil {
			return nil, err
		}
		e, err := readEntry(text)
		if err != nil {
			return nil, err
		}
		existing[e.stringMember("name")] = e
	}
	return existing, nil
}

const (
	actionCreated   = "created"
	actionChanged   = "changed"
	actionUnchanged = "unchanged"
)

// diff returns the change that the file makes to the existing pool. If existing is nil, the pool does not exist and is created.
func (p poolFileEntry) diff(existing entry) (poolChange, error) {
	change := poolChange{Pool: p.Name, Action: actionUnchanged}
	fields, err := p.fields()
	if err != nil {
		return change, err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if canonical(existing[name]) != canonical(fields[name]) {
			change.Action = actionChanged
			change.Changes = append(change.Changes, fieldChange{Field: name, From: existing[name], To: fields[name]})
		}
	}
	if existing == nil {
		change.Action = actionCreated
	}
	return change, nil
}

// canonical returns the JSON in text with its members in a fixed order, so that equal values have equal text. It returns "" if text is not
// JSON.
func canonical(text json.RawMessage) string {
	var value any
	if json.Unmarshal(text, &value) != nil {
		return ""
	}
	normalized, _ := json.Marshal(value) // cannot fail: the value was just decoded
	return string(normalized)
}

// describeChanges returns the text of the cell for a change of a pool, such as: capacity 60 -> 80, lease 5m.
func describeChanges(change entry) string {
	var changes []fieldChange
	_ = json.Unmarshal(change["changes"], &changes) // cannot fail: this program encoded it
	texts := make([]string, len(changes))
	for i, c := range changes {
		from := ""
		if c.From != nil {
			from = orNone(terminal.FormatValue(c.Field, c.From)) + " -> "
		}
		texts[i] = terminal.Label(c.Field) + " " + from + orNone(terminal.FormatValue(c.Field, c.To))
	}
	return strings.Join(texts, ", ")
}

// orNone returns text, or "none" if text is empty.
func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// poolFile is the content of a file of pools.
type poolFile struct {
	Pools []poolFileEntry `yaml:"pools"`
}

// poolFileEntry is a pool in a file, with the field names of the API. A nil field is not in the file.
type poolFileEntry struct {
	Name      string              `json:"-"                  yaml:"name"`
	Capacity  *int                `json:"capacity,omitempty" yaml:"capacity"`
	Lease     string              `json:"-"                  yaml:"lease"`
	LeaseMS   *int64              `json:"lease_ms,omitempty" yaml:"-"`
	Paused    *bool               `json:"paused,omitempty"   yaml:"paused"`
	Callers   *callersBound       `json:"callers,omitempty"  yaml:"callers"`
	Longest   string              `json:"-"                  yaml:"longest_lease"`
	LongestMS *int64              `json:"longest_lease_ms,omitempty" yaml:"-"`
	Sleep     string              `json:"-"                  yaml:"longest_sleep"`
	SleepMS   *int64              `json:"longest_sleep_ms,omitempty" yaml:"-"`
	Windows   *[]operators.Window `json:"windows,omitempty"  yaml:"windows,flow"`
	Limits    *[]operators.Policy `json:"limits,omitempty"   yaml:"limits,flow"`
}

// callersBound is a number of slots or "all" in a file.
type callersBound struct{ callersFlag }

// MarshalYAML returns the value for a YAML file: the number of slots, or "all".
func (f callersBound) MarshalYAML() (any, error) { //nolint:unparam // the interface of the package
	if f.maxSlots == nil {
		return "all", nil
	}
	return *f.maxSlots, nil
}

// UnmarshalYAML parses the value of a YAML file: a number of slots, or "all".
func (f *callersBound) UnmarshalYAML(node *yaml.Node) error {
	if err := f.Set(node.Value); err != nil {
		return fmt.Errorf("callers: %w", err)
	}
	return nil
}

// MarshalJSON returns the JSON that the API uses: the number of slots, or null for "all".
func (f callersBound) MarshalJSON() ([]byte, error) { return json.Marshal(f.maxSlots) }

// readPools reads the file of pools at path (stdin if path is "-"). Only the server validates the values.
func readPools(path string, stdin io.Reader) ([]poolFileEntry, error) {
	text := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, usageError{fmt.Errorf("--file: %w", err)}
		}
		defer func() { _ = file.Close() }() // an error of Close has no effect, because the file was only read
		text = file
	}
	var file poolFile
	d := yaml.NewDecoder(text)
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document", path)
	}
	if len(file.Pools) == 0 {
		return nil, fmt.Errorf("%s: no pools; a list under `pools:` is required", path)
	}
	names := map[string]bool{}
	for i := range file.Pools {
		p := &file.Pools[i]
		if names[p.Name] {
			return nil, fmt.Errorf("%s: pool %s: appears twice", path, p.Name)
		}
		names[p.Name] = true
		if err := p.convertUnits(); err != nil {
			return nil, fmt.Errorf("%s: pool %q: %w", path, p.Name, err)
		}
	}
	return file.Pools, nil
}

// convertUnits converts the values that are written for people to the values of the API.
func (p *poolFileEntry) convertUnits() error {
	if p.Name == "" {
		return errors.New("name: required")
	}
	var err error
	if p.LeaseMS, err = parseDurationMS("lease", p.Lease); err != nil {
		return err
	}
	if p.LongestMS, err = parseDurationMS("longest_lease", p.Longest); err != nil {
		return err
	}
	if p.SleepMS, err = parseDurationMS("longest_sleep", p.Sleep); err != nil {
		return err
	}
	if p.Windows != nil {
		for i, w := range *p.Windows {
			if w.Timezone == "" {
				(*p.Windows)[i].Timezone = "UTC"
			}
		}
	}
	return nil
}

// parseDurationMS parses a duration and returns it in ms. If text is empty, it returns nil.
func parseDurationMS(field, text string) (*int64, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // the file does not have this field
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%s: must be a duration such as 300s or 5m", field)
	}
	return new(d.Milliseconds()), nil
}

// fields returns the fields that the file contains, by their names in the API.
func (p *poolFileEntry) fields() (entry, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return readEntry(text)
}

// writePoolFile writes a file that changes nothing if it is applied to the same pools.
func writePoolFile(pools iter.Seq2[operators.PoolState, error], out io.Writer) error {
	var file poolFile
	for p, err := range pools {
		if err != nil {
			return err
		}
		file.Pools = append(file.Pools, poolFileEntry{
			Name: p.Name, Capacity: &p.Capacity, Lease: shortDuration(p.LeaseMS), Paused: &p.Paused, Callers: &callersBound{callersFlag{p.Callers}},
			Longest: shortDuration(p.LongestLeaseMS), Sleep: shortDuration(p.LongestSleepMS), Windows: &p.Windows, Limits: &p.Limits,
		})
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// shortDuration formats milliseconds for people.
func shortDuration(ms int64) string {
	return terminal.FormatDuration(time.Duration(ms) * time.Millisecond)
}
