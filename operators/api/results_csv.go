package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// export streams all results that match request. As CSV, the outputs have one column for each field.
func (s *resultOperations) export(ctx context.Context, request *resultQuery) (*huma.StreamResponse, error) {
	if request.Aggregate != "" || request.ByTag != "" {
		return nil, invalidProblem("query.aggregate, query.by_tag: only together with JSON")
	}
	if err := request.check(); err != nil {
		return nil, err
	}
	if _, err := s.ledger.Batch(ctx, request.ID); err != nil {
		return nil, err
	}
	found, err := s.readSampledFields(ctx, request)
	if err != nil {
		return nil, err
	}
	fields := request.Fields
	request.Size = exportPageSize
	read := func(token string) (listPage[operators.Result], error) {
		request.Token = token
		if err := request.decodeToken(); err != nil {
			return listPage[operators.Result]{}, err
		}
		return s.list(ctx, request)
	}
	first, err := s.list(ctx, request)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		if acceptedStreamType(out.Header("Accept")) != operators.TypeCSV {
			writeStream(out, first, read)
			return
		}
		table := &resultTable{fields: fields, hasRest: fields == nil}
		if table.hasRest {
			table.fields = found
		}
		writeStreamWith(out, table.encode, first, read)
	}}, nil
}

// readSampledFields returns the names of the fields in a sample of the outputs, or nil if request names the fields.
func (s *resultOperations) readSampledFields(ctx context.Context, request *resultQuery) (names []string, err error) {
	if request.Fields != nil {
		return nil, nil
	}
	collector := newResultCollector(&resultQuery{})
	err = s.ledger.SampleResults(ctx, store.SampleSpec{ResultFilter: request.filter(0), MaxResults: fieldSampleSize}, collector.addResult)
	for _, field := range collector.order {
		if field.Name != rootField { // this field is in the last column
			names = append(names, field.Name)
		}
	}
	return names, err
}

type resultTable struct {
	fields    []string
	hasRest   bool // a last column has the members that are not in fields
	hasHeader bool
}

// encode returns results as lines of CSV. The first lines follow a header line.
func (t *resultTable) encode(results []operators.Result) (lines []byte, err error) {
	var out bytes.Buffer
	table := csv.NewWriter(&out)
	if !t.hasHeader {
		t.hasHeader = true
		_ = table.Write(t.header()) // a write to memory does not fail
	}
	for _, r := range results {
		_ = table.Write(t.row(r))
	}
	table.Flush()
	return out.Bytes(), table.Error()
}

func (t *resultTable) header() (columnNames []string) {
	names := []string{"task", "device", "state", "ended_at", "duration_ms", "error", "output_dropped"}
	for _, field := range t.fields {
		if field == rootField {
			names = append(names, "output")
			continue
		}
		names = append(names, escapeFormula("output."+field)) // devices choose the names of the fields
	}
	if t.hasRest {
		names = append(names, "output")
	}
	return names
}

func (t *resultTable) row(result operators.Result) (cells []string) {
	row := []string{formatDecimal(result.Task), result.Device, result.State, jsonCellText(result.Ended), jsonCellText(result.Duration), escapeFormula(result.Error), jsonCellText(result.Dropped)}
	if !t.hasRest { // without a rest column, the output is an object with only the chosen fields
		from := map[string]json.RawMessage{}
		if len(result.Output) > 0 {
			_ = json.Unmarshal(result.Output, &from) // the server has just built this object
		}
		for _, field := range t.fields {
			row = append(row, cellTextOrEmpty(from[field]))
		}
		return row
	}
	has := map[string]json.RawMessage{}
	for _, m := range flattenOutput(result.Output) {
		if has[m.name] == nil {
			has[m.name] = m.value
		}
	}
	for _, field := range t.fields {
		row = append(row, cellTextOrEmpty(has[field]))
		delete(has, field)
	}
	if value, ok := has[rootField]; ok {
		return append(row, cellText(value))
	}
	if len(has) == 0 {
		return append(row, "")
	}
	return append(row, jsonCellText(has))
}

// cellTextOrEmpty returns value as the text of a cell, or an empty string if value is nil, which means that the output does not have the field.
func cellTextOrEmpty(value json.RawMessage) (text string) {
	if value == nil {
		return ""
	}
	return cellText(value)
}

// jsonCellText returns a value as the text of a CSV cell, in the format that the exports of other lists use.
func jsonCellText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return cellText(text)
}
