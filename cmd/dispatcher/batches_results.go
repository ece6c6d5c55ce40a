package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

const shownFields = 6 // maximum number of output columns if no fields are named

// resultFlags contains the flags of the command that shows the results of a batch.
type resultFlags struct {
	query *pflag.FlagSet // each flag is a parameter of the query

	limit       int
	csv, asJSON bool
}

func batchResultsCommand(batches commandFactory) *cobra.Command {
	r := &resultFlags{}
	command := batches.objectCommand("results", "Show the results of a batch: a summary, then a table of the outputs", r.showResults)
	r.query = addFieldFlags(command, operators.ResultQuery{})
	flags := command.Flags()
	flags.IntVar(&r.limit, "limit", 20, "maximum number of results to show; 0: all, in JSON at most 1000")
	flags.BoolVar(&r.csv, "csv", false, "write all results as CSV, with a column for each field")
	flags.BoolVar(&r.asJSON, "json", false, "same as --output json: the first page and the summary, as received from the server")
	return command
}

func (r *resultFlags) showResults(s *session, batchID string) error {
	s.console.isJSON = s.console.isJSON || r.asJSON
	path, query := operators.Path("batches", batchID, "results"), requestQuery(r.query)
	switch {
	case r.limit < 0:
		return usageError{errors.New("--limit: must not be negative")}
	case r.csv && s.console.isJSON:
		return usageError{errors.New("--csv: not together with JSON")}
	case r.csv:
		return s.Copy(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: path, Query: query, Accept: operators.TypeCSV}, s.console.out)
	case s.console.isJSON:
		query.Set("page_size", strconv.Itoa(min(cmp.Or(r.limit, 1000), 1000)))
		return s.getAndShow(path, query, nil, nil)
	}
	summary, err := s.writeResultSummary(batchID, maps.Clone(query))
	if err != nil {
		return err
	}
	fields, _ := r.query.GetStringSlice("fields") // cannot fail: the flag exists
	if !r.query.Changed("fields") {
		fields = firstScalarFields(summary.Fields)
	}
	if len(fields) > 0 {
		query.Set("fields", strings.Join(fields, ","))
	}
	query.Del("aggregate")
	query.Del("by_tag")
	query.Set("sample", "1") // the summary was written above, so a sample of one result is enough
	_, _ = fmt.Fprintln(s.console.out)
	return s.writeList(listSpec{path: path, columns: resultColumns(fields), query: query}, r.limit)
}

// firstScalarFields returns the names of the fields that become columns of the table: the first shownFields of fields. It
// skips lists, objects, and names with a comma, because a comma separates the names in a query.
func firstScalarFields(fields []operators.OutputField) (names []string) {
	for _, f := range fields {
		if len(names) < shownFields && f.Type != "list" && f.Type != "object" && !strings.Contains(f.Name, ",") {
			names = append(names, f.Name)
		}
	}
	return names
}

// resultColumns returns the columns of the table of results: the fixed columns, and one column for each output field
// that fields names.
func resultColumns(fields []string) []tableColumn {
	list := newColumns("TASK", "DEVICE", "STATE", "ENDED=ended_at", "RAN=duration_ms")
	for _, name := range fields {
		list = append(list, tableColumn{name, func(e jsonObject) string {
			var output map[string]json.RawMessage
			_ = json.Unmarshal(e["output"], &output) // if the output is null, output stays empty
			return jsonCellText(output[name])
		}})
	}
	return append(list, newColumns("ERROR")...)
}

// jsonCellText returns a JSON string without its quotes, "" for null, and any other value as JSON.
func jsonCellText(value json.RawMessage) string {
	var text string
	switch {
	case string(value) == "null":
		return ""
	case json.Unmarshal(value, &text) == nil:
		return text
	}
	return string(value)
}

// writeResultSummary writes the progress of the batch and the summary of its results, and returns the summary. query
// selects the results.
func (s *session) writeResultSummary(batchID string, query url.Values) (operators.ResultSummary, error) {
	var batchProgress batchProgress
	var first struct{ Summary operators.ResultSummary }
	path := operators.Path("batches", batchID)
	query.Set("page_size", "1")
	err := s.Do(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: path}, &batchProgress)
	if err == nil {
		err = s.Do(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: path + "/results", Query: query}, &first)
	}
	if err == nil {
		_, _ = fmt.Fprintln(s.console.out, terminal.EscapeUnprintable(batchProgress.summaryLine()))
		err = resultReport{s.console.out}.writeSummary(first.Summary)
	}
	return first.Summary, err
}

// resultReport writes the parts of the summary of results for people.
type resultReport struct{ out io.Writer }

// writeSummary writes the size of the sample, the aggregate, the counts by tag and the errors.
func (r resultReport) writeSummary(summary operators.ResultSummary) error {
	switch {
	case summary.Sampled < summary.Scanned:
		_, _ = fmt.Fprintf(r.out, "%d of %d scanned results ended in that time; %d results match\n", summary.Sampled, summary.Scanned, summary.Matching)
	case summary.Scanned < summary.Matching:
		_, _ = fmt.Fprintf(r.out, "summary of a sample: %d of %d results\n", summary.Sampled, summary.Matching)
	}
	var errorsTitle string
	if summary.ErrorsSampled < summary.ErrorsTotal {
		errorsTitle = fmt.Sprintf("errors of a sample: %d of %d tasks", summary.ErrorsSampled, summary.ErrorsTotal)
	}
	var tags, failures [][]any
	for _, c := range summary.ByTag {
		tags = append(tags, []any{textOrDefault(c.Value, "(without)"), c.Ended, c.Failed})
	}
	if rest := summary.ByTagRest; rest != nil {
		tags = append(tags, []any{"(others)", rest.Ended, rest.Failed})
	}
	for _, e := range summary.Errors {
		failures = append(failures, []any{e.Tasks, e.Error})
	}
	err := r.writeAggregate(summary.Aggregate)
	return errors.Join(err, r.writeRows("", tags, "TAG", "ENDED", "FAILED"), r.writeRows(errorsTitle, failures, "FAILED", "ERROR"))
}

// writeRows writes an empty line, the title and a table. If there are no rows, it writes nothing.
func (r resultReport) writeRows(title string, rows [][]any, heads ...string) error {
	if len(rows) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(r.out)
	if title != "" {
		_, _ = fmt.Fprintln(r.out, terminal.EscapeUnprintable(title))
	}
	table := terminal.NewTable(r.out, heads...)
	for _, row := range rows {
		table.AddRow(formatCells(row)...)
	}
	return table.Flush()
}

// formatCells returns the values of a row as texts. Numbers with a fraction have six significant digits.
func formatCells(row []any) (texts []string) {
	texts = make([]string, len(row))
	for i, value := range row {
		texts[i] = fmt.Sprint(value)
		if number, ok := value.(float64); ok {
			texts[i] = strconv.FormatFloat(number, 'g', 6, 64)
		}
	}
	return texts
}

// textOrDefault returns the text that value points to. If value is nil, it returns defaultText.
func textOrDefault(value *string, defaultText string) string {
	if value == nil {
		return defaultText
	}
	return *value
}

// writeAggregate writes the summary of the values of one output field: first of its numbers, then of its other values. If
// aggregate is nil, it writes nothing.
func (r resultReport) writeAggregate(aggregate *operators.Aggregate) error {
	if aggregate == nil {
		return nil
	}
	title := aggregate.Field + ", of " + countText(aggregate.Tasks, "task", "tasks")
	if aggregate.Other > 0 {
		title += fmt.Sprintf(" (%d with a list, an object or a number beyond 64 bits)", aggregate.Other)
	}
	var values, bins [][]any
	for _, v := range aggregate.Values {
		values = append(values, []any{v.Tasks, v.Value})
	}
	if aggregate.Rest > 0 {
		values = append(values, []any{aggregate.Rest, "(others)"})
	}
	n := aggregate.Number
	if n == nil {
		return r.writeRows(title, values, "TASKS", "VALUE")
	}
	for _, bin := range n.Histogram {
		bins = append(bins, []any{bin.From, bin.To, bin.Tasks, terminal.Bar(bin.Tasks, n.Count, barWidth)})
	}
	return errors.Join(
		r.writeRows(title, [][]any{{n.Min, n.P5, n.P50, n.P95, n.P99, n.Max, n.Mean, n.Count}}, "MIN", "P5", "P50", "P95", "P99", "MAX", "MEAN", "NUMBERS"),
		r.writeRows("", bins, "FROM", "TO", "TASKS", ""), r.writeRows(title, values, "TASKS", "VALUE"))
}
