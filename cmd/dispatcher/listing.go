package main

import (
	"encoding/json"
	"fmt"
	"iter"
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
	listed := &cobra.Command{Use: "list", Short: short, RunE: o.with(func(s *session, _ []string) error {
		if limit < 0 {
			return usageError{fmt.Errorf("--limit: must not be negative")}
		}
		return s.list(l, limit)
	})}
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

func (l list) query(s *session) url.Values {
	if l.filters == nil {
		return nil
	}
	return l.filters(s.cmd.Flags())
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

func (s *session) list(l list, limit int) error {
	q := l.query(s)
	if q.Has("recent") {
		limit = 0 // it says how many
	}
	entries, more := s.List(s.cmd.Context(), l.path, q, limit)
	return s.listed(entries, more, l.columns)
}

// listed writes entries; more says afterwards that there are others.
func (s *session) listed(entries iter.Seq2[json.RawMessage, error], more *bool, columns []column) error {
	write := s.newListWriter(columns)
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
		s.note("There are more: --limit 0 shows all.")
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
	return s.Copy(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: l.path, Query: l.query(s), Accept: accept}, s.out)
}

// listWriter writes entries as a table, or as one JSON array with an entry a
// line.
type listWriter struct {
	s       *session
	columns []column
	table   *terminal.Table
	count   int
}

func (s *session) newListWriter(columns []column) *listWriter {
	w := &listWriter{s: s, columns: columns}
	if !s.json {
		heads := make([]string, len(columns))
		for i, c := range columns {
			heads[i] = c.head
		}
		w.table = terminal.NewTable(s.out, heads...)
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
		_, err := fmt.Fprintf(w.s.out, "%s%s", before, text)
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
		_, err := fmt.Fprintln(w.s.out, "[]")
		return err
	}
	_, err := fmt.Fprint(w.s.out, "\n]\n")
	return err
}
