package main

import (
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

func applyPools(o *operator) *cobra.Command {
	var file string
	var dryRun bool
	command := &cobra.Command{
		Use: "apply -f FILE", Short: "Create and change pools as a YAML file says",
		Long: `Create and change pools as a YAML file says:

  pools:
    - name: ar:330100
      capacity: 60
      lease: 5m
      paused: false
      windows: [{cron: "0 1 * * *", duration: 4h, timezone: Asia/Shanghai}]
      limits: [{name: starts, per: pool, algorithm: sliding, windows: [{max: 30, per_ms: 60000}]}]

Of a pool that exists, what the file leaves out stays as it is; a new one needs
a capacity, and gets the defaults of the rest. "pools export --format yaml"
writes such a file. Pools that the file does not name are left alone. The whole
file is checked before anything is written. It ends with the first pool that the
server refuses; what was done until then stays, and the same may be applied
again.`,
		Args: cobra.NoArgs,
		RunE: o.with(func(s *session, _ []string) error {
			wanted, err := readPools(file, s.cmd.InOrStdin())
			if err != nil {
				return err
			}
			return s.apply(wanted, dryRun)
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "the YAML file; -: standard input")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	return needed(command, "file")
}

// poolChange is what applying does to one pool.
type poolChange struct {
	Pool    string        `json:"pool"`
	Action  string        `json:"action"` // created, changed, unchanged
	Changes []fieldChange `json:"changes,omitempty"`
	Warned  []string      `json:"warnings,omitempty"`

	body map[string]any
}

type fieldChange struct {
	Field string          `json:"field"`
	From  json.RawMessage `json:"from,omitempty"`
	To    json.RawMessage `json:"to"`
}

// apply compares all first, so that a dry run and a real one say the same.
func (s *session) apply(wanted []poolSpec, dryRun bool) error {
	there, err := s.pools()
	if err != nil {
		return err
	}
	changes := make([]poolChange, len(wanted))
	for i, spec := range wanted {
		if changes[i], err = spec.against(there[spec.name]); err != nil {
			return err
		}
	}
	show := s.newListWriter([]column{member("POOL", "pool"), member("ACTION", "action"), {"CHANGES", describeChanges}})
	count := map[string]int{}
	progress := terminal.NewProgress(s.errs)
	for i, change := range changes {
		progress.Show("%d of %d pools", i, len(changes))
		text, err := s.applyOne(change, dryRun)
		progress.Clear()
		if err != nil {
			s.summary("Stopped: ", count)
			return errors.Join(fmt.Errorf("pool %s: %w", change.Pool, err), show.end())
		}
		if text != nil {
			change.Warned = s.warn("pool "+change.Pool+": ", text)
		}
		count[change.Action]++
		if err := show.change(change, s.json); err != nil {
			return err
		}
	}
	before := ""
	if dryRun {
		before = "Nothing was done. It would be: "
	}
	s.summary(before, count)
	return show.end()
}

// change writes one; a table leaves out what stays.
func (w *listWriter) change(c poolChange, all bool) error {
	if c.Action == actionUnchanged && !all {
		return nil
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return w.entry(text)
}

func (s *session) summary(before string, count map[string]int) {
	s.note("%s%d created, %d changed, %d unchanged", before, count[actionCreated], count[actionChanged], count[actionUnchanged])
}

// applyOne returns the server's answer; none: there was nothing to do.
func (s *session) applyOne(change poolChange, dryRun bool) (json.RawMessage, error) {
	if change.Action == actionUnchanged {
		return nil, nil
	}
	r := operators.Request{Method: http.MethodPatch, Path: operators.Path("pools", change.Pool), Body: change.body}
	if change.Action == actionCreated {
		r.Method = http.MethodPut
	}
	if dryRun {
		r.Query = url.Values{"dry_run": {"true"}}
	}
	return s.Call(s.cmd.Context(), r)
}

// pools are all there are, by name.
func (s *session) pools() (map[string]entry, error) {
	there := map[string]entry{}
	entries, _ := s.List(s.cmd.Context(), operators.Path("pools"), nil, 0)
	for text, err := range entries {
		if err != nil {
			return nil, err
		}
		e, err := readEntry(text)
		if err != nil {
			return nil, err
		}
		there[e.word("name")] = e
	}
	return there, nil
}

const (
	actionCreated   = "created"
	actionChanged   = "changed"
	actionUnchanged = "unchanged"
)

// against is what the spec changes of a pool; nil: there is none.
func (p poolSpec) against(there entry) (poolChange, error) {
	change := poolChange{Pool: p.name, Action: actionUnchanged, body: map[string]any{}}
	if _, said := p.fields["capacity"]; there == nil && !said {
		return change, fmt.Errorf("line %d: pool %s: capacity: a pool that is new needs one", p.line, p.name)
	} else if there == nil {
		change.Action = actionCreated
	}
	for _, name := range slices.Sorted(maps.Keys(p.fields)) {
		to, err := json.Marshal(p.fields[name])
		if err != nil {
			return change, err
		}
		same, err := sameJSON(there[name], to)
		if err != nil {
			return change, err
		}
		if !same {
			change.body[name] = p.fields[name]
			change.Changes = append(change.Changes, fieldChange{Field: name, From: there[name], To: to})
		}
	}
	if there != nil && len(change.Changes) > 0 {
		change.Action = actionChanged
	}
	return change, nil
}

func sameJSON(a, b json.RawMessage) (bool, error) {
	if a == nil {
		return false, nil
	}
	var left, right any
	if err := errors.Join(json.Unmarshal(a, &left), json.Unmarshal(b, &right)); err != nil {
		return false, err
	}
	x, err := json.Marshal(left) // members in one order
	y, also := json.Marshal(right)
	return string(x) == string(y), errors.Join(err, also)
}

// describeChanges is their cell: capacity 60 -> 80, lease 5m.
func describeChanges(e entry) string {
	var changes []fieldChange
	_ = json.Unmarshal(e["changes"], &changes) // it was just written
	texts := make([]string, len(changes))
	for i, c := range changes {
		from := ""
		if c.From != nil {
			from = orNone(terminal.Value(c.Field, c.From)) + " -> "
		}
		texts[i] = terminal.Label(c.Field) + " " + from + orNone(terminal.Value(c.Field, c.To))
	}
	return strings.Join(texts, ", ")
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}
