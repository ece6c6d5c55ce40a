package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// entry is one of a list.
type entry map[string]json.RawMessage

func readEntry(text json.RawMessage) (entry, error) {
	var e entry
	err := json.Unmarshal(text, &e)
	return e, err
}

// text of a member, for people.
func (e entry) text(name string) string { return terminal.Value(name, e[name]) }

// word is a member that is text, as it is.
func (e entry) word(name string) string {
	var word string
	_ = json.Unmarshal(e[name], &word) // another type: none
	return word
}

// column of a table.
type column struct {
	head string
	cell func(entry) string
}

// member is a column that shows a member.
func member(head, name string) column {
	return column{head, func(e entry) string { return e.text(name) }}
}

// list is how the entries at a path are listed.
type list struct {
	path    string
	columns []column
	filters func(*pflag.FlagSet) url.Values // nil: none
	forms   map[string]func(*session) error // of the export, besides CSV and NDJSON
}

func (l list) formats() []string {
	return append([]string{"csv", "ndjson"}, slices.Sorted(maps.Keys(l.forms))...)
}

// addList makes the verbs list and export of a noun. filter adds the flags of
// its filters.
func (o *operator) addList(l list, short string, filter func(*cobra.Command)) []*cobra.Command {
	var limit int
	listed := &cobra.Command{Use: "list", Short: short, RunE: o.with(func(s *session, _ []string) error { return s.list(l, limit) })}
	listed.Flags().IntVar(&limit, "limit", 100, "most entries to show; 0: all")
	format := "csv"
	exported := &cobra.Command{
		Use: "export", Short: "Write all that match to standard output",
		RunE: o.with(func(s *session, _ []string) error { return s.export(l, format) }),
	}
	exported.Flags().StringVar(&format, "format", format, strings.Join(l.formats(), " or "))
	complete(exported, "format", l.formats()...)
	if filter != nil {
		filter(listed)
		filter(exported)
	}
	return []*cobra.Command{listed, exported}
}

func (l list) query(flags *pflag.FlagSet) url.Values {
	if l.filters == nil {
		return nil
	}
	return l.filters(flags)
}

// filterBy returns the filters of a list that has one filter for each of these flags.
func filterBy(names ...string) func(*pflag.FlagSet) url.Values {
	return func(flags *pflag.FlagSet) url.Values { return filtered(flags, names...) }
}

// filtered makes a query of the flags that a command has of these.
func filtered(flags *pflag.FlagSet, names ...string) url.Values {
	q := url.Values{}
	for _, name := range names {
		if flag := flags.Lookup(name); flag != nil && flag.Value.String() != "" {
			q.Set(name, flag.Value.String())
		}
	}
	return q
}

// list writes at most limit entries of l that match the flags of the command. If limit is 0, it
// writes all of them.
func (s *session) list(l list, limit int) error {
	if limit < 0 {
		return usageError{errors.New("--limit: must not be negative")}
	}
	q := l.query(s.cmd.Flags())
	if q.Has("recent") {
		limit = 0 // The flag --recent limits the entries.
	}
	entries, more := s.List(s.cmd.Context(), l.path, q, limit)
	write := s.console.newListWriter(l.columns)
	for text, err := range entries {
		if err == nil {
			err = write.entry(text)
		}
		if err != nil {
			return err
		}
	}
	if err := write.end(); err != nil {
		return err
	}
	if *more {
		s.console.note("There are more: --limit 0 shows all.")
	}
	return nil
}

func (s *session) export(l list, format string) error {
	if write := l.forms[format]; write != nil {
		return write(s)
	}
	accept := map[string]string{"csv": operators.TypeCSV, "ndjson": operators.TypeNDJSON}[format]
	if accept == "" {
		return usageError{fmt.Errorf("--format: %q is not %s", format, strings.Join(l.formats(), " or "))}
	}
	return s.Copy(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: l.path, Query: l.query(s.cmd.Flags()), Accept: accept}, s.console.out)
}

// listWriter writes entries as a table, or as one JSON array with an entry a
// line.
type listWriter struct {
	out     io.Writer
	columns []column
	table   *terminal.Table
	count   int
}

func (c *console) newListWriter(columns []column) *listWriter {
	w := &listWriter{out: c.out, columns: columns}
	if !c.isJSON {
		heads := make([]string, len(columns))
		for i, column := range columns {
			heads[i] = column.head
		}
		w.table = terminal.NewTable(c.out, heads...)
	}
	return w
}

func (w *listWriter) entry(text json.RawMessage) error {
	w.count++
	if w.table == nil {
		before := "[\n"
		if w.count > 1 {
			before = ",\n"
		}
		_, err := fmt.Fprintf(w.out, "%s%s", before, text)
		return err
	}
	e, err := readEntry(text)
	if err != nil {
		return err
	}
	cells := make([]string, len(w.columns))
	for i, c := range w.columns {
		cells[i] = c.cell(e)
	}
	w.table.Row(cells...)
	return nil
}

func (w *listWriter) end() error {
	switch {
	case w.table != nil:
		return w.table.Flush()
	case w.count == 0:
		_, err := fmt.Fprintln(w.out, "[]")
		return err
	}
	_, err := fmt.Fprint(w.out, "\n]\n")
	return err
}
