package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

const shownFields = 6 // maximum number of output columns if no fields are named

// resultFlags contains the flags of the command that shows the results of a batch.
type resultFlags struct {
	operators.ResultQuery

	since, until timeFlag

	limit       int
	csv, asJSON bool
}

// batchResults returns the command `batches results`.
func batchResults(batches noun) *cobra.Command {
	r := &resultFlags{}
	command := batches.objectCommand("results", "Show the results of a batch: a summary, then a table of the outputs", func(s *session, batch string) error {
		s.console.isJSON = s.console.isJSON || r.asJSON
		r.Since, r.Until = r.since.value, r.until.value
		path := operators.Path("batches", batch, "results")
		switch {
		case r.limit < 0:
			return usageError{fmt.Errorf("--limit: must not be negative")}
		case r.csv && s.console.isJSON:
			return usageError{fmt.Errorf("--csv: not together with JSON")}
		case r.csv:
			return s.Copy(s.cmd.Context(), operators.Request{Method: http.MethodGet, Path: path, Query: r.Values(), Accept: operators.TypeCSV}, s.console.out)
		case s.console.isJSON:
			query := r.Values()
			query.Set("page_size", strconv.Itoa(min(cmp.Or(r.limit, 1000), 1000)))
			return s.getAndShow(path, query, nil, nil)
		}
		sum, err := resultReport{s.console.out}.summarize(s.cmd.Context(), s.Client, batch, r.Values())
		if err != nil {
			return err
		}
		if r.Fields == nil {
			r.Fields = firstFields(sum.Fields)
		}
		_, _ = fmt.Fprintln(s.console.out)
		return s.writeList(listSpec{path: path, columns: resultColumns(r.Fields), query: r.tableQuery()}, r.limit)
	})
	flags := command.Flags()
	flags.StringSliceVar(&r.Fields, "fields", nil, "output fields to show, e.g. down_mbps,net.rtt (default: the first fields; with --csv: all)")
	flags.StringVar(&r.Aggregate, "aggregate", "", "summarize this field: percentiles and a histogram for numbers, counts for text")
	flags.StringVar(&r.ByTag, "by-tag", "", "count results by this tag of the devices")
	flags.StringVar(&r.State, "state", "", "only results of tasks in this state: "+strings.Join(operators.TaskStates()[2:], ", "))
	flags.Var(&r.since, "since", "only results of tasks that ended at or after this time: 2h or 1d (ago), or 2026-11-21T14:00:00Z")
	flags.Var(&r.until, "until", "only results of tasks that ended before this time")
	flags.IntVar(&r.Sample, "sample", 0, "maximum number of results for the summary, 1 to 50000 (default 10000)")
	flags.IntVar(&r.limit, "limit", 20, "maximum number of results to show; 0: all, in JSON at most 1000")
	flags.BoolVar(&r.csv, "csv", false, "write all results as CSV, with a column for each field")
	flags.BoolVar(&r.asJSON, "json", false, "same as --output json: the first page and the summary, as received from the server")
	complete(command, "state", operators.TaskStates()[2:]...)
	return command
}

// tableQuery returns the query for the table of results. The query asks for no summary, because the command has shown the summary before.
func (r *resultFlags) tableQuery() url.Values {
	return operators.ResultQuery{State: r.State, Since: r.Since, Until: r.Until, Fields: r.Fields, Sample: 1}.Values()
}

// firstFields returns the names of the fields that become columns of the table: the first shownFields of fields, without lists, objects and
// names with a comma (a comma separates the names in a query).
func firstFields(fields []operators.OutputField) (names []string) {
	for _, f := range fields {
		if len(names) < shownFields && f.Type != "list" && f.Type != "object" && !strings.Contains(f.Name, ",") {
			names = append(names, f.Name)
		}
	}
	return names
}

// resultColumns returns the columns of the table of results: the columns of every result, and one column for each of fields.
func resultColumns(fields []string) []column {
	list := columns("TASK", "DEVICE", "STATE", "ENDED=ended_at", "RAN=duration_ms")
	for _, name := range fields {
		list = append(list, column{name, func(e entry) string {
			var output map[string]json.RawMessage
			_ = json.Unmarshal(e["output"], &output) // if the output is null, output stays empty
			return plainValue(output[name])
		}})
	}
	return append(list, columns("ERROR")...)
}

// plainValue returns a JSON string without its quotes, "" for null, and any other value as JSON.
func plainValue(value json.RawMessage) string {
	var text string
	switch {
	case string(value) == "null":
		return ""
	case json.Unmarshal(value, &text) == nil:
		return text
	}
	return string(value)
}

// resultReport writes the progress and the summary of the results of a batch for people.
type resultReport struct{ out io.Writer }

// summarize reads the batch and the summary that query selects, and writes both. It returns the summary.
func (r resultReport) summarize(ctx context.Context, client *operators.Client, batch string, query url.Values) (*operators.ResultSummary, error) {
	var batchProgress progress
	path := operators.Path("batches", batch)
	if err := client.Do(ctx, operators.Request{Method: http.MethodGet, Path: path}, &batchProgress); err != nil {
		return nil, err
	}
	query.Set("page_size", "1")
	var first operators.Results
	if _, err := readAnswer(ctx, client, operators.Request{Method: http.MethodGet, Path: path + "/results", Query: query}, &first); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintln(r.out, terminal.EscapeUnprintable(batchProgress.summaryLine()))
	return first.Summary, r.writeSummary(*first.Summary)
}

// writeSummary writes the size of the sample, the aggregate, the counts by tag and the errors.
func (r resultReport) writeSummary(summary operators.ResultSummary) error {
	switch {
	case summary.Sampled < summary.Scanned:
		_, _ = fmt.Fprintf(r.out, "%d of %d scanned results ended in that time; %d results match\n", summary.Sampled, summary.Scanned, summary.Matching)
	case summary.Scanned < summary.Matching:
		_, _ = fmt.Fprintf(r.out, "summary of a sample: %d of %d results\n", summary.Sampled, summary.Matching)
	}
	if a := summary.Aggregate; a != nil {
		if err := r.writeAggregate(*a); err != nil {
			return err
		}
	}
	if len(summary.ByTag) > 0 {
		t := r.startTable("", "TAG", "ENDED", "FAILED")
		for _, c := range summary.ByTag {
			name := "(without)"
			if c.Value != nil {
				name = *c.Value
			}
			t.AddRow(name, fmt.Sprint(c.Ended), fmt.Sprint(c.Failed))
		}
		if rest := summary.ByTagRest; rest != nil {
			t.AddRow("(others)", fmt.Sprint(rest.Ended), fmt.Sprint(rest.Failed))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(summary.Errors) == 0 {
		return nil
	}
	title := ""
	if summary.ErrorsSampled < summary.ErrorsTotal {
		title = fmt.Sprintf("errors of a sample: %d of %d tasks", summary.ErrorsSampled, summary.ErrorsTotal)
	}
	t := r.startTable(title, "FAILED", "ERROR")
	for _, e := range summary.Errors {
		t.AddRow(fmt.Sprint(e.Tasks), e.Error)
	}
	return t.Flush()
}

// startTable writes an empty line and the title, and returns a table with these column heads.
func (r resultReport) startTable(title string, heads ...string) *terminal.Table {
	_, _ = fmt.Fprintln(r.out)
	if title != "" {
		_, _ = fmt.Fprintln(r.out, terminal.EscapeUnprintable(title))
	}
	return terminal.NewTable(r.out, heads...)
}

// writeAggregate writes the summary of the values of one field of the outputs.
func (r resultReport) writeAggregate(aggregate operators.Aggregate) error {
	title := aggregate.Field + ", of " + countText(aggregate.Tasks, "task", "tasks")
	if aggregate.Other > 0 {
		title += fmt.Sprintf(" (%d with a list, an object or a number beyond 64 bits)", aggregate.Other)
	}
	if n := aggregate.Number; n != nil {
		if err := r.writeNumbers(title, *n); err != nil || len(aggregate.Values) == 0 {
			return err
		}
	}
	t := r.startTable(title, "TASKS", "VALUE")
	for _, v := range aggregate.Values {
		t.AddRow(fmt.Sprint(v.Tasks), v.Value)
	}
	if aggregate.Rest > 0 {
		t.AddRow(fmt.Sprint(aggregate.Rest), "(others)")
	}
	return t.Flush()
}

// writeNumbers writes a table with the minimum, the maximum, the mean and the percentiles of numbers under the title.
func (r resultReport) writeNumbers(title string, numbers operators.NumberValues) error {
	t := r.startTable(title, "MIN", "P5", "P50", "P95", "P99", "MAX", "MEAN", "NUMBERS")
	t.AddRow(formatNumber(numbers.Min), formatNumber(numbers.P5), formatNumber(numbers.P50), formatNumber(numbers.P95), formatNumber(numbers.P99), formatNumber(numbers.Max), formatNumber(numbers.Mean), fmt.Sprint(numbers.Count))
	if err := t.Flush(); err != nil {
		return err
	}
	t = r.startTable("", "FROM", "TO", "TASKS", "")
	for _, bin := range numbers.Histogram {
		t.AddRow(formatNumber(bin.From), formatNumber(bin.To), fmt.Sprint(bin.Tasks), terminal.Bar(bin.Tasks, numbers.Count, barWidth))
	}
	return t.Flush()
}

// formatNumber returns number as text with six significant digits.
func formatNumber(number float64) string { return strconv.FormatFloat(number, 'g', 6, 64) }
