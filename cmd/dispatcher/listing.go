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

// entry is a JSON object of the API, as its members by name: an entry of a list, for example.
type entry map[string]json.RawMessage

// readEntry decodes text, a JSON object, into its members.
func readEntry(text json.RawMessage) (entry, error) {
	var e entry
	err := json.Unmarshal(text, &e)
	return e, err
}

// text returns a member as text for display. The text of a member that is false, null or absent is empty.
func (e entry) text(name string) string { return terminal.FormatValue(name, e[name]) }

// stringMember returns a member that is a JSON string. If the member has another type, it returns "".
func (e entry) stringMember(name string) string {
	var word string
	_ = json.Unmarshal(e[name], &word)
	return word
}

// column is a column of a table: its head, and a function that returns the text of a cell.
type column struct {
	head string
	cell func(entry) string
}

// memberColumn returns a column that shows one member.
func memberColumn(head, name string) column {
	return column{head, func(e entry) string { return e.text(name) }}
}

// listSpec describes how the entries at a path of the API are listed.
type listSpec struct {
	path         string
	columns      []column
	filters      func(*pflag.FlagSet) url.Values // returns the query for the flags; nil means that the list has no filters
	extraFormats map[string]func(*session) error // formats of the export in addition to CSV and NDJSON
}

// formats returns the names of the formats in which the list can be exported.
func (l listSpec) formats() []string {
	return append([]string{"csv", "ndjson"}, slices.Sorted(maps.Keys(l.extraFormats))...)
}

// newListCommands returns two commands about the entries of list: `list` and `export`, in this order. It calls addFilters for each
// command, to add the flags that list.filters reads. addFilters may be nil.
func (o *operatorFlags) newListCommands(list listSpec, short string, addFilters func(*cobra.Command)) []*cobra.Command {
	var limit int
	listed := &cobra.Command{Use: "list", Short: short, RunE: o.withSession(func(s *session, _ []string) error { return s.writeList(list, limit) })}
	listed.Flags().IntVar(&limit, "limit", 100, "maximum number of entries to show; 0: all")
	format := "csv"
	exported := &cobra.Command{
		Use: "export", Short: "Write all matching entries to standard output",
		RunE: o.withSession(func(s *session, _ []string) error { return s.export(list, format) }),
	}
	exported.Flags().StringVar(&format, "format", format, strings.Join(list.formats(), " or "))
	complete(exported, "format", list.formats()...)
	if addFilters != nil {
		addFilters(listed)
		addFilters(exported)
	}
	return []*cobra.Command{listed, exported}
}

// query returns the query of the list for the flags of the command.
func (l listSpec) query(flags *pflag.FlagSet) url.Values {
	if l.filters == nil {
		return nil
	}
	return l.filters(flags)
}

// filterByFlags returns a function for listSpec.filters: its query has one parameter for each flag in names, with the name of the flag.
func filterByFlags(names ...string) func(*pflag.FlagSet) url.Values {
	return func(flags *pflag.FlagSet) url.Values { return flagQuery(flags, names...) }
}

// flagQuery returns a query with the flags in names. It leaves out flags that the command does not have and flags that are empty.
func flagQuery(flags *pflag.FlagSet, names ...string) url.Values {
	q := url.Values{}
	for _, name := range names {
		if flag := flags.Lookup(name); flag != nil && flag.Value.String() != "" {
			q.Set(strings.ReplaceAll(name, "-", "_"), flag.Value.String())
		}
	}
	return q
}

// writeList writes at most limit entries of list that match the flags of the command. If limit is 0, it writes all of them.
func (s *session) writeList(list listSpec, limit int) error {
	if limit < 0 {
		return usageError{errors.New("--limit: must not be negative")}
	}
	q := list.query(s.cmd.Flags())
	if q.Has("recent") {
		limit = 0 // the flag --recent limits the number of entries
	}
	entries, more := s.List(s.cmd.Context(), list.path, q, limit)
	writer := s.console.newListWriter(list.columns)
	for text, err := range entries {
		if err == nil {
			err = writer.writeEntry(text)
		}
		if err != nil {
			return err
		}
	}
	if err := writer.finish(); err != nil {
		return err
	}
	if *more {
		s.console.note("There are more: --limit 0 shows all.")
	}
	return nil
}

// export writes all entries of list that match the flags of the command, in this format.
func (s *session) export(list listSpec, format string) error {
	if write := list.extraFormats[format]; write != nil {
		return write(s)
	}
	accept := map[string]string{"csv": operators.TypeCSV, "ndjson": operators.TypeNDJSON}[format]
	if accept == "" {
		return usageError{fmt.Errorf("--format: %q is not %s", format, strings.Join(list.formats(), " or "))}
	}
	return s.Copy(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: list.path, Query: list.query(s.cmd.Flags()), Accept: accept}, s.console.out)
}

// listWriter writes entries as a table, or as one JSON array with one entry per line.
type listWriter struct {
	out     io.Writer
	columns []column
	table   *terminal.Table
	count   int
}

// newListWriter returns a writer of entries with these columns. It writes a table, or JSON with --output json.
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

// writeEntry writes the entry text, a JSON object.
func (w *listWriter) writeEntry(text json.RawMessage) error {
	w.count++
	if w.table == nil {
		separator := "[\n"
		if w.count > 1 {
			separator = ",\n"
		}
		_, err := fmt.Fprintf(w.out, "%s%s", separator, text)
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
	w.table.AddRow(cells...)
	return nil
}

// finish writes the rest of the table, or the end of the JSON array.
func (w *listWriter) finish() error {
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
