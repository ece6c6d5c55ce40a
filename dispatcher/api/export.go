package api

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

const (
	eventsPath = "/v1/events"

	exportPage  = 1000             // entries held in memory
	exportPause = 60 * time.Second // the longest a client may take for a page

	exportsMost = 10 // at once
	exportsEach = 2  // of one operator token
)

// wantsStream says whether the request asks for another form than JSON.
func wantsStream(r *http.Request) bool {
	form := streamForm(r.Header.Get("Accept"))
	return r.Method == http.MethodGet && form != "" && (form != typeEvents || r.URL.Path == eventsPath)
}

// streamForm is the first of the streamed forms that a client accepts, unless
// JSON comes before it; empty: none.
func streamForm(accept string) string {
	for part := range strings.SplitSeq(accept, ",") {
		switch form, _, _ := mime.ParseMediaType(part); form {
		case typeCSV, typeNDJSON, typeEvents:
			return form
		case "application/json", "*/*":
			return ""
		}
	}
	return ""
}

// listing is an operation whose answer is a page of a list.
type listing[I, O, T any] struct {
	handle func(context.Context, *I) (*body[O], error)
	page   func(*I) *Page
	items  func(O) (items []T, next string)
	live   func(context.Context, huma.Context, *I) // nil: there is no live form
}

// registerList adds a list: its pages as JSON, and all of it as a stream.
func registerList[I, O, T any](a *API, operations huma.API, op huma.Operation, list listing[I, O, T]) {
	op.Responses = map[string]*huma.Response{"200": {Content: map[string]*huma.MediaType{
		"application/json": {}, typeCSV: textMedia(), typeNDJSON: textMedia(),
	}}}
	if list.live != nil {
		op.Responses["200"].Content[typeEvents] = textMedia()
	}
	op.Middlewares = huma.Middlewares{a.turn(operations)}
	register(a, operations, op, list.handle)
	op.Middlewares = huma.Middlewares{a.exporting}
	op.Responses, op.Hidden = nil, true
	register(a, a.streams, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		list.page(in).Size = exportPage
		first, err := list.handle(ctx, in)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(out huma.Context) {
			if streamForm(out.Header("Accept")) == typeEvents {
				list.live(ctx, out, in)
				return
			}
			list.stream(ctx, out, in, first.Body)
		}}, nil
	})
}

// exporting lets few lists be streamed at once.
func (a *API) exporting(ctx huma.Context, next func(huma.Context)) {
	if streamForm(ctx.Header("Accept")) == typeEvents { // which have a bound of their own
		next(ctx)
		return
	}
	leave, ok := a.exports.Take(operatorOf(ctx.Context()).share())
	if !ok {
		a.refuse(a.streams, ctx, problem(http.StatusServiceUnavailable, codeBusyServer, "too many exports, of this token or of all"))
		return
	}
	defer leave()
	next(ctx)
}

func textMedia() *huma.MediaType {
	return &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
}

// stream writes page after page. A failure half-way closes the connection:
// a client must not take a part for the whole.
func (l listing[I, O, T]) stream(ctx context.Context, out huma.Context, in *I, page O) {
	form := streamForm(out.Header("Accept"))
	out.SetHeader("Content-Type", form)
	out.SetStatus(http.StatusOK)
	_, w := humago.Unwrap(out)
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{}) // the server's is for the request, and a test's recorder has none
	write := newExport[T](form)
	for {
		_ = connection.SetWriteDeadline(time.Now().Add(exportPause))
		items, next := l.items(page)
		text, err := write.page(items)
		if err == nil {
			_, err = out.BodyWriter().Write(text)
		}
		if err == nil && next == "" {
			return
		}
		l.page(in).Token = next
		if err == nil {
			page, err = l.next(ctx, in)
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

func (l listing[I, O, T]) next(ctx context.Context, in *I) (page O, err error) {
	answer, err := l.handle(ctx, in)
	if err != nil {
		return page, err
	}
	return answer.Body, nil
}

// export writes entries in one of the forms.
type export[T any] struct {
	csv    bool
	headed bool
}

func newExport[T any](form string) *export[T] { return &export[T]{csv: form == typeCSV} }

func (e *export[T]) page(items []T) ([]byte, error) {
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
	if !e.headed {
		e.headed = true
		var none T
		names, _, err := cells(none)
		if err != nil {
			return nil, err
		}
		_ = table.Write(names) // to memory
	}
	for _, item := range items {
		_, row, err := cells(item)
		if err != nil {
			return nil, err
		}
		_ = table.Write(row)
	}
	table.Flush()
	return out.Bytes(), table.Error()
}

// cells are the members of an entry as JSON shows it, in their order: text as
// it is, null as nothing, objects and lists as JSON.
func cells(item any) (names, row []string, err error) {
	text, err := json.Marshal(item)
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
			return nil, nil, errors.New("an entry is no object")
		}
		names, row = append(names, text), append(row, cell(value))
	}
	return names, row, nil
}

func cell(value json.RawMessage) string {
	switch value[0] {
	case 'n':
		return ""
	case '"':
		var text string
		_ = json.Unmarshal(value, &text) // it was just decoded
		return harmless(text)
	}
	return string(value)
}

// harmless keeps a spreadsheet from taking text of a device for a formula.
func harmless(text string) string {
	if text != "" && strings.ContainsRune("=+-@\t\r\n", rune(text[0])) {
		return "'" + text
	}
	return text
}
