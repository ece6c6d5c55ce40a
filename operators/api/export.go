package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	eventsPath = "/v1/events"

	exportPageSize    = 1000             // entries of a page of an export; one page is held in memory
	exportPageTimeout = 60 * time.Second // maximum time that a client may take to receive a page

	maxExports         = 10 // concurrent exports of one replica
	maxExportsPerToken = 2  // concurrent exports of one operator token
)

// wantsStream reports whether the request asks for a form of the response other than JSON.
func wantsStream(r *http.Request) bool {
	form := acceptedStreamType(r.Header.Get("Accept"))
	return r.Method == http.MethodGet && form != "" && (form != typeEvents || r.URL.Path == eventsPath)
}

// acceptedStreamType returns the first media type of a stream in accept, the header Accept of a request. If accept names JSON before it,
// or names no media type of a stream, the result is an empty string. For the media type of the request's own body, see bodyStreamType.
func acceptedStreamType(accept string) (mediaType string) {
	for part := range strings.SplitSeq(accept, ",") {
		switch form, _, _ := mime.ParseMediaType(part); form {
		case operators.TypeCSV, operators.TypeNDJSON, typeEvents:
			return form
		case "application/json", "*/*":
			return ""
		}
	}
	return ""
}

// registerStream adds the streamed form of a list, which export sends.
func registerStream[Request any](r *routes, op huma.Operation, export func(context.Context, *Request) (*huma.StreamResponse, error)) {
	op.Middlewares = r.streams.newMiddlewares(r.limitStreams)
	op.Responses, op.Hidden = nil, true
	addOperation(r, r.streams, op, export)
}

// limitStreams limits how many lists are streamed at once. It refuses additional requests.
func (r *routes) limitStreams(ctx huma.Context, next func(huma.Context)) error {
	shares, streamKind := r.exportTurns, "exports"
	if acceptedStreamType(ctx.Header("Accept")) == typeEvents {
		shares, streamKind = r.liveTurns, "live streams"
	}
	leave, ok := shares.TryStart(operatorOf(ctx.Context()).keyOfShare())
	if !ok {
		return newProblem(http.StatusServiceUnavailable, codeBusyServer, "too many "+streamKind+", of this token or in total")
	}
	defer leave()
	next(ctx)
	return nil
}

func plainTextMediaType() *huma.MediaType {
	return &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
}

// writeStream writes all pages of a list in the form that the client accepts. first is the first page, and readPage reads the page that
// a page token selects.
func writeStream[Entry any](response huma.Context, first listPage[Entry], readPage func(token string) (listPage[Entry], error)) {
	write := entryEncoder[Entry]{csv: acceptedStreamType(response.Header("Accept")) == operators.TypeCSV}
	writeStreamWith(response, write.encode, first, readPage)
}

// writeStreamWith writes all pages of a list. first is the first page, readPage reads the page that a page token selects, and encode
// formats the entries of a page. If it fails half-way, it breaks the connection, so that a client does not take a part for the
// complete list.
func writeStreamWith[Entry any](response huma.Context, encode func([]Entry) ([]byte, error), first listPage[Entry], readPage func(token string) (listPage[Entry], error)) {
	form := acceptedStreamType(response.Header("Accept"))
	response.SetHeader("Content-Type", form)
	response.SetStatus(http.StatusOK)
	_, w := humago.Unwrap(response)
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{}) // the server's deadline is for the request; the ResponseWriter of a test has no deadlines
	for {
		_ = connection.SetWriteDeadline(time.Now().Add(exportPageTimeout))
		text, err := encode(first.entries)
		if err == nil {
			_, err = response.BodyWriter().Write(text)
		}
		if err == nil && first.next == "" {
			return
		}
		if err == nil {
			first, err = readPage(first.next)
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

type entryEncoder[T any] struct {
	csv    bool
	header []string // the columns; nil until the header line is written
}

// encode returns items as lines of CSV or NDJSON. The first lines of CSV follow a header line.
func (e *entryEncoder[T]) encode(items []T) (lines []byte, err error) {
	var out bytes.Buffer
	if !e.csv {
		lines := json.NewEncoder(&out)
		for _, item := range items {
			if err := lines.Encode(item); err != nil {
				return nil, err
			}
		}
		return out.Bytes(), nil
	}
	table := csv.NewWriter(&out)
	if e.header == nil {
		var none T
		names, _, err := jsonCells(none)
		if err != nil {
			return nil, err
		}
		e.header = names
		_ = table.Write(names) // a write to memory does not fail
	}
	for _, item := range items {
		names, cells, err := jsonCells(item)
		if err != nil {
			return nil, err
		}
		row := make([]string, 0, len(cells))
		for i, name := range names {
			if slices.Contains(e.header, name) { // an optional member, which the header lacks, has no column
				row = append(row, cells[i])
			}
		}
		_ = table.Write(row)
	}
	table.Flush()
	return out.Bytes(), table.Error()
}

// jsonCells encodes an entry as a JSON object and returns the names of its members, and their values as cells, in their order: strings
// without quotes, null as an empty cell, objects and lists as JSON.
func jsonCells(entry any) (names, cells []string, err error) {
	text, err := json.Marshal(entry)
	if err != nil {
		return nil, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return nil, nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, nil, err
		}
		text, ok := name.(string)
		if !ok {
			return nil, nil, errors.New("an entry is not an object")
		}
		names, cells = append(names, text), append(cells, cellText(value))
	}
	return names, cells, nil
}

// cellText returns a JSON value as the text of a CSV cell.
func cellText(value json.RawMessage) string {
	switch value[0] {
	case 'n':
		return ""
	case '"':
		var text string
		_ = json.Unmarshal(value, &text) // the value was decoded before, so it is valid
		return escapeFormula(text)
	case '{', '[':
		return escapeJSONFormula(string(value))
	}
	return string(value)
}
