package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	resultsShown    = 25
	maxColumnsShown = 5
	errorsShown     = 10
	openSampleSize  = 2000 // sample size while tasks of the batch are open, because its page is then read often
	endedSampleSize = 5000 // sample size after the batch has ended

	// summaryReadEvery is the interval at which the results are summarized again while tasks end.
	summaryReadEvery = 5 * time.Second
)

// batchResults holds the results of a batch as its page shows them.
type batchResults struct {
	operators.ResultSummary

	Batch     int64
	Chosen    url.Values // input of the form, as it was sent
	Query     string     // Chosen as a query, without the page token
	Columns   []string
	Rows      []resultRow
	Histogram *histogram
	Next      string
	First     bool
	Shown     bool // at least one task has ended
}

// resultRow is one result with a cell for each column.
type resultRow struct {
	operators.Result

	Cells []resultCell
}

type resultCell struct {
	Text   string
	Number bool
}

// selectResultParams returns the parameters of query that choose the results.
func selectResultParams(query url.Values) url.Values {
	chosen := nonEmptyParams(query, "field", "tag", "state", "since", "until")
	if columns := query["column"]; len(columns) > 0 {
		chosen["column"] = columns
	}
	return chosen
}

// parseResultQuery converts the parameters of the form to a query of the API. The times in chosen have the format of browsers.
func parseResultQuery(chosen url.Values) (query operators.ResultQuery, err error) {
	query.State = chosen.Get("state")
	if query.Since, err = parseTimeParam(chosen, "since"); err == nil {
		query.Until, err = parseTimeParam(chosen, "until")
	}
	return query, err
}

// parseTimeParam reads the time in the input inputName of a form, in UTC. It returns the zero time if the form has none.
func parseTimeParam(params url.Values, inputName string) (time.Time, error) {
	if params.Get(inputName) == "" {
		return time.Time{}, nil
	}
	at, err := parseUTC(params.Get(inputName))
	if err != nil {
		return at, &operators.Problem{Status: http.StatusUnprocessableEntity, Detail: inputName + ": " + err.Error()}
	}
	return at, nil
}

// HasColumn reports whether the table of results shows this column.
func (s batchResults) HasColumn(column string) bool { return slices.Contains(s.Columns, column) }

// IsNumber reports whether the values of this column are numbers, which are aligned to the right.
func (s batchResults) IsNumber(column string) bool {
	return slices.ContainsFunc(s.Fields, func(f operators.OutputField) bool { return f.Name == column && f.Type == "number" })
}

// States returns the states that a task with a result can have.
func (s batchResults) States() []string { return operators.TaskStates()[2:] }

// IsSample reports whether only a part of the results was summarized.
func (s batchResults) IsSample() bool { return s.Scanned < s.Matching }

// HasTimeRange reports whether only the results of a time range are shown.
func (s batchResults) HasTimeRange() bool { return s.Chosen.Has("since") || s.Chosen.Has("until") }

// CSV returns the query string of the link that downloads the results as a CSV file.
func (s batchResults) CSV() string {
	if q := nonEmptyParams(s.Chosen, "state", "since", "until").Encode(); q != "" {
		return "?" + q
	}
	return ""
}

// tagRow has the counts for one value of a tag, or, if Name is empty, for the devices without the tag.
type tagRow struct {
	operators.TagCount

	Name string
}

// Tags returns one row with counts for each value of the tag by which the results are counted.
func (s batchResults) Tags() []tagRow {
	rows := make([]tagRow, len(s.ByTag))
	for i, count := range s.ByTag {
		rows[i].TagCount = count
		if count.Value != nil {
			rows[i].Name = *count.Value
		}
	}
	return rows
}

// TopErrors returns the first errorsShown errors.
func (s batchResults) TopErrors() []operators.ErrorCount {
	return s.Errors[:min(len(s.Errors), errorsShown)]
}

// readResults returns the results of the batch shown. It reads the summary first, because the summary lists the fields.
func (b *batchPages) readResults(r *http.Request, shown shownBatch) (batchResults, error) {
	s := batchResults{Batch: shown.ID, Chosen: selectResultParams(r.URL.Query())}
	asked, err := parseResultQuery(s.Chosen)
	if err != nil {
		return s, err
	}
	asked.Aggregate, asked.ByTag, asked.Sample = s.Chosen.Get("field"), s.Chosen.Get("tag"), openSampleSize
	if shown.HasEnded() {
		asked.Sample = endedSampleSize
	}
	sum, err := b.readSummary(r, shown, asked)
	if err == nil && asked.Aggregate == "" {
		if asked.Aggregate = chooseDefaultField(sum.Fields); asked.Aggregate != "" {
			sum, err = b.readSummary(r, shown, asked)
		}
	}
	if err != nil {
		return s, err
	}
	s.ResultSummary, s.Shown, s.Query = sum, shown.EndedTasks() > 0, s.Chosen.Encode()
	if s.Aggregate != nil && s.Aggregate.Number != nil {
		s.Histogram = newHistogram(*s.Aggregate.Number)
	}
	s.Columns = s.Chosen["column"]
	if len(s.Columns) == 0 {
		s.Columns = chooseDefaultColumns(sum.Fields)
	}
	return s, b.addResultRows(r, resultsPath(shown), &s)
}

// resultsPath returns the API path of the results of a batch.
func resultsPath(shown shownBatch) (apiPath string) {
	return operators.Path("batches", strconv.FormatInt(shown.ID, 10), "results")
}

// readSummary returns the summary of the results that selection selects. shown is their batch. A summary is cached for summaryReadEvery. If
// it covers all results, not a sample, it is also read again when the counts of the batch change. The total counts in the summary are
// always the current counts of the batch.
func (b *batchPages) readSummary(r *http.Request, shown shownBatch, selection operators.ResultQuery) (operators.ResultSummary, error) {
	query := selection.Values()
	query.Set("page_size", "1")
	name := fmt.Sprint(shown.ID, " ", query.Encode(), shown.FailedTasks() > 0)
	if shown.countEndedTasks(selection.State) <= int64(selection.Sample) {
		name += fmt.Sprint(shown.Counts)
	}
	sum, err := b.summaryCache.getOrRead(r.Context(), name, b.now(), func(ctx context.Context) (operators.ResultSummary, error) {
		var read operators.Results
		if err := b.api.get(r.WithContext(ctx), resultsPath(shown), query, &read); err != nil {
			return operators.ResultSummary{}, err
		}
		return *read.Summary, nil
	})
	if err != nil {
		return sum, err
	}
	sum.Matching, sum.ErrorsTotal, sum.Progress = shown.countEndedTasks(selection.State), shown.FailedTasks(), slices.Clone(sum.Progress) // cloned because the cached value is shared
	last := &sum.Progress[len(sum.Progress)-1]
	last.Ended, last.Failed = shown.EndedTasks(), shown.FailedTasks()
	return sum, nil
}

// addResultRows reads one page of the results at path and adds its rows to table.
func (b *batchPages) addResultRows(r *http.Request, path string, table *batchResults) error {
	pager := newPager(r, nil)
	asked, err := parseResultQuery(table.Chosen)
	if err != nil {
		return err
	}
	asked.Fields, asked.Sample = table.Columns, 1
	query := asked.Values()
	query.Set("page_size", strconv.Itoa(resultsShown))
	if !pager.isFirst() {
		query.Set("page_token", pager.token)
	}
	var read operators.Results
	if err := b.api.get(r, path, query, &read); err != nil {
		return err
	}
	table.First = pager.isFirst()
	if read.NextPageToken != "" {
		table.Next = pager.path + "?" + strings.TrimPrefix(table.Query+"&", "&") + url.Values{"page": {read.NextPageToken}}.Encode()
	}
	for _, result := range read.Results {
		row := resultRow{Result: result}
		var output map[string]json.RawMessage
		_ = json.Unmarshal(result.Output, &output) // a null leaves the map empty
		for _, name := range table.Columns {
			row.Cells = append(row.Cells, newResultCell(output[name]))
		}
		table.Rows = append(table.Rows, row)
	}
	return nil
}

// newResultCell returns text as it is, and any other value as JSON.
func newResultCell(value json.RawMessage) resultCell {
	var text string
	if len(value) == 0 || string(value) == "null" {
		return resultCell{}
	}
	if json.Unmarshal(value, &text) == nil {
		return resultCell{Text: terminal.HideUnreadable(text)}
	}
	return resultCell{Text: string(value), Number: strings.ContainsRune("-0123456789", rune(value[0]))}
}

// chooseDefaultField returns the first numeric field. Without a numeric field, it returns the first field whose values can be counted.
func chooseDefaultField(fields []operators.OutputField) string {
	for _, kinds := range [][]string{{"number"}, {"boolean", "text", "mixed"}} {
		for _, f := range fields {
			if slices.Contains(kinds, f.Type) {
				return f.Name
			}
		}
	}
	return ""
}

// chooseDefaultColumns returns the first fields that are neither lists nor objects.
func chooseDefaultColumns(fields []operators.OutputField) (names []string) {
	for _, f := range fields {
		if len(names) < maxColumnsShown && f.Type != "list" && f.Type != "object" && !strings.Contains(f.Name, ",") {
			names = append(names, f.Name)
		}
	}
	return names
}

func (b *batchPages) selectResults(r *http.Request) (csvExport, error) {
	id := r.PathValue("id")
	asked, err := parseResultQuery(r.URL.Query())
	query := asked.Values()
	if fields := r.URL.Query().Get("fields"); fields != "" {
		query.Set("fields", fields)
	}
	return csvExport{operators.Path("batches", id, "results"), query, "batch-" + url.PathEscape(id)}, err
}
