package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// jsonObject is a JSON object of the API, for example an element of a list. It maps the names of the members to their values.
type jsonObject map[string]json.RawMessage

// decodeObject decodes text, a JSON object, into its members.
func decodeObject(text json.RawMessage) (jsonObject, error) {
	var e jsonObject
	err := json.Unmarshal(text, &e)
	return e, err
}

// memberText returns a member as text for display. The text of a member that is false, null or absent is empty.
func (e jsonObject) memberText(name string) string { return terminal.FormatValue(name, e[name]) }

func (e jsonObject) decode(target any) error { return convertJSON(e, target) }

func convertJSON(value, target any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, target)
}

// stringMember returns a member that is a JSON string. If the member has another type, it returns "".
func (e jsonObject) stringMember(name string) string {
	var word string
	_ = json.Unmarshal(e[name], &word)
	return word
}

// tableColumn is a column of a table: its head, and a function that returns the text of a cell.
type tableColumn struct {
	head string
	cell func(jsonObject) string
}

// newColumns returns a column for each of heads. The head TAGS shows the member tags. The head "LEASE=lease_ms" is shown as
// LEASE and shows the member lease_ms.
func newColumns(heads ...string) []tableColumn {
	list := make([]tableColumn, len(heads))
	for i, head := range heads {
		head, name, isNamed := strings.Cut(head, "=")
		if !isNamed {
			name = strings.ReplaceAll(strings.ToLower(head), " ", "_")
		}
		list[i] = tableColumn{head, func(e jsonObject) string { return e.memberText(name) }}
	}
	return list
}

// listSpec describes how the entries at a path of the API are listed.
type listSpec struct {
	path    string
	columns []tableColumn
	query   url.Values
	// exportYAML writes the entries as YAML, a format of the export in addition to CSV and NDJSON. It may be nil.
	exportYAML func(s *session, query url.Values) error
}

// newListCommands returns two commands about the entries of list: first `list`, then `export`. addFilters adds to both
// commands the flags that filter the entries. addFilters may be nil.
func (o *operatorFlags) newListCommands(list listSpec, shortHelp string, addFilters func(*cobra.Command)) []*cobra.Command {
	listed := &cobra.Command{Use: "list", Short: shortHelp}
	if addFilters != nil {
		addFilters(listed)
	}
	filters := copyFlags(listed)
	limit := addLimitFlag(listed)
	listed.RunE = o.withSession(func(s *session, _ []string) error { return s.writeList(list.withFilters(filters), *limit) })
	exported := &cobra.Command{Use: "export", Short: "Write all matching entries to standard output"}
	exported.Flags().AddFlagSet(filters)
	format := list.addFormatFlag(exported)
	exported.RunE = o.withSession(func(s *session, _ []string) error { return s.exportList(list.withFilters(filters), *format) })
	return []*cobra.Command{listed, exported}
}

// copyFlags returns a set of the flags that command has now. Flags that are added later are not in the set.
func copyFlags(command *cobra.Command) *pflag.FlagSet {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	set.AddFlagSet(command.Flags())
	return set
}

func addLimitFlag(command *cobra.Command) (maxEntries *int) {
	return command.Flags().Int("limit", 100, "maximum number of entries to show; 0: all")
}

func (l listSpec) addFormatFlag(command *cobra.Command) (format *string) {
	format = command.Flags().String("format", "csv", strings.Join(l.formatNames(), " or "))
	completeFlagValues(command, "format", l.formatNames()...)
	return format
}

// formatNames returns the names of the formats in which the list can be exported.
func (l listSpec) formatNames() []string {
	if l.exportYAML != nil {
		return []string{"csv", "ndjson", "yaml"}
	}
	return []string{"csv", "ndjson"}
}

// withFilters returns the list restricted to the entries that match filters, the flags that the user gave.
func (l listSpec) withFilters(filters *pflag.FlagSet) listSpec {
	l.query = requestQuery(filters)
	return l
}

// writeList writes at most limit entries of list. If limit is 0, it writes all of them.
func (s *session) writeList(list listSpec, limit int) error {
	if limit < 0 {
		return usageError{errors.New("--limit: must not be negative")}
	}
	if list.query.Has("recent") {
		limit = 0 // the flag --recent limits the number of entries
	}
	entries, more := s.List(s.cmd.Context(), list.path, list.query, limit)
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
		s.console.writeMessage("There are more: --limit 0 shows all.")
	}
	return nil
}

// exportList writes all entries of list in this format.
func (s *session) exportList(list listSpec, format string) error {
	request := operators.Request{Method: http.MethodGet, Path: list.path, Query: list.query}
	switch {
	case !slices.Contains(list.formatNames(), format):
		return usageError{fmt.Errorf("--format: %q is not %s", format, strings.Join(list.formatNames(), " or "))}
	case format == "yaml":
		return list.exportYAML(s, list.query)
	case format == "csv":
		request.Accept = operators.TypeCSV
	default:
		request.Accept = operators.TypeNDJSON
	}
	return s.Copy(s.cmd.Context(), request, s.console.out)
}

func writeTable(out io.Writer, entries []jsonObject, columns []tableColumn) error {
	writer := (&console{out: out}).newListWriter(columns)
	for _, e := range entries {
		writer.addRow(e)
	}
	return writer.finish()
}

// listWriter writes entries as a table, or as one JSON array with one entry per line.
type listWriter struct {
	out     io.Writer
	columns []tableColumn
	table   *terminal.Table
	count   int
}

// newListWriter returns a writer of entries with these columns. It writes a table, or JSON with --output json.
func (c *console) newListWriter(columns []tableColumn) *listWriter {
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
	e, err := decodeObject(text)
	if err != nil {
		return err
	}
	w.addRow(e)
	return nil
}

func (w *listWriter) addRow(e jsonObject) {
	cells := make([]string, len(w.columns))
	for i, c := range w.columns {
		cells[i] = c.cell(e)
	}
	w.table.AddRow(cells...)
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
