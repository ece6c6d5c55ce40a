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

// export streams all results of the query. As CSV, the outputs have one column for each field.
func (s *results) export(ctx context.Context, in *resultQuery) (*huma.StreamResponse, error) {
	if in.Aggregate != "" || in.ByTag != "" {
		return nil, invalid("query.aggregate, query.by_tag: only with JSON")
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	if _, err := s.ledger.Batch(ctx, in.ID); err != nil {
		return nil, err
	}
	found, err := s.fieldsOf(ctx, in)
	if err != nil {
		return nil, err
	}
	fields := in.Fields
	in.Size = exportPage
	read := func(token string) (pageOf[operators.Result], error) {
		in.Token = token
		return s.list(ctx, in)
	}
	first, err := read(in.Token)
	if err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		if streamForm(out.Header("Accept")) != operators.TypeCSV {
			stream(out, first, read)
			return
		}
		table := &resultTable{fields: fields, rest: fields == nil}
		if table.rest {
			table.fields = found
		}
		streamBy(out, table.page, first, read)
	}}, nil
}

// fieldsOf returns the names of the fields in a sample of the outputs, or nil if the query names the fields.
func (s *results) fieldsOf(ctx context.Context, in *resultQuery) (names []string, err error) {
	if in.Fields != nil {
		return nil, nil
	}
	seen := newLook(&resultQuery{})
	err = s.ledger.SampleResults(ctx, store.Sample{ResultFilter: in.filter(0), Most: fieldsSample}, seen.add)
	for _, field := range seen.order {
		if field.Name != wholeOutput { // this field is in the last column
			names = append(names, field.Name)
		}
	}
	return names, err
}

// resultTable writes results as CSV.
type resultTable struct {
	fields []string
	rest   bool // a last column has the members that are not in fields
	headed bool
}

func (t *resultTable) page(list []operators.Result) ([]byte, error) {
	var out bytes.Buffer
	table := csv.NewWriter(&out)
	if !t.headed {
		t.headed = true
		_ = table.Write(t.head()) // a write to memory does not fail
	}
	for _, r := range list {
		_ = table.Write(t.row(r))
	}
	table.Flush()
	return out.Bytes(), table.Error()
}

func (t *resultTable) head() []string {
	names := []string{"task", "device", "state", "ended_at", "duration_ms", "error", "output_dropped"}
	for _, field := range t.fields {
		if field == wholeOutput {
			names = append(names, "output")
			continue
		}
		names = append(names, "output."+field)
	}
	if t.rest {
		names = append(names, "output")
	}
	return names
}

func (t *resultTable) row(r operators.Result) []string {
	row := []string{number(r.Task), r.Device, r.State, cellOf(r.Ended), cellOf(r.Duration), harmless(r.Error), cellOf(r.Dropped)}
	if !t.rest { // the output is an object with only the chosen fields
		from := map[string]json.RawMessage{}
		if len(r.Output) > 0 {
			_ = json.Unmarshal(r.Output, &from) // the server has just built this object
		}
		for _, field := range t.fields {
			row = append(row, cellIf(from[field]))
		}
		return row
	}
	has := map[string]json.RawMessage{}
	for _, m := range flattened(r.Output) {
		if has[m.name] == nil {
			has[m.name] = m.value
		}
	}
	for _, field := range t.fields {
		row = append(row, cellIf(has[field]))
		delete(has, field)
	}
	if value, ok := has[wholeOutput]; ok {
		return append(row, cell(value))
	}
	if len(has) == 0 {
		return append(row, "")
	}
	return append(row, cellOf(has))
}

// cellIf returns the text of a cell, or an empty string if the output does not have the field.
func cellIf(value json.RawMessage) string {
	if value == nil {
		return ""
	}
	return cell(value)
}

// cellOf returns a value in the format that the cells of other lists have.
func cellOf(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return ""
	}
	return cell(text)
}
