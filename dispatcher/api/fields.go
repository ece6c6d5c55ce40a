package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// timestamp is a time on the wire: RFC 3339, UTC, milliseconds.
type timestamp struct{ time.Time }

const timestampLayout = "2006-01-02T15:04:05.000Z07:00"

func stamp(t time.Time) timestamp { return timestamp{t} }

func stampPointer(t *time.Time) *timestamp {
	if t == nil {
		return nil
	}
	return &timestamp{*t}
}

// MarshalJSON writes it.
func (t timestamp) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format(timestampLayout))
}

// Schema describes it.
func (timestamp) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: "string", Format: "date-time"}
}

// raw is JSON that is passed through as it is.
type raw json.RawMessage

// MarshalJSON writes it; absent is null.
func (r raw) MarshalJSON() ([]byte, error) { return json.RawMessage(r).MarshalJSON() }

// UnmarshalJSON keeps it.
func (r *raw) UnmarshalJSON(b []byte) error { return (*json.RawMessage)(r).UnmarshalJSON(b) }

// Schema says that it may be anything.
func (raw) Schema(huma.Registry) *huma.Schema { return &huma.Schema{} }

// patch is a field of a merge (RFC 7396): absent changes nothing, null asks for
// the default.
type patch[T any] struct {
	set   bool
	value *T // nil: the default
}

// UnmarshalJSON notes that the field is there.
func (p *patch[T]) UnmarshalJSON(b []byte) error {
	p.set = true
	if string(b) == `""` { // empty is the same as null
		return nil
	}
	return json.Unmarshal(b, &p.value)
}

// Schema is that of its value, or null.
func (patch[T]) Schema(r huma.Registry) *huma.Schema {
	s := *huma.SchemaFromType(r, reflect.TypeFor[T]())
	s.Nullable = true
	return &s
}

// to sets what is changed.
func (p patch[T]) to(field *T, standard T) {
	switch {
	case !p.set:
	case p.value == nil:
		*field = standard
	default:
		*field = *p.value
	}
}

// readPatch checks what a patch sets, and turns it into what is kept of it.
func readPatch[Written, Kept any](p patch[Written], read func(Written) (Kept, error)) (patch[Kept], error) {
	if p.value == nil {
		return patch[Kept]{set: p.set}, nil
	}
	kept, err := read(*p.value)
	return patch[Kept]{set: true, value: &kept}, err
}

// Page is asked for with every list.
type Page struct {
	Size  int    `query:"page_size" minimum:"1" maximum:"1000" default:"100" doc:"Entries of one page"`
	Token string `query:"page_token" maxLength:"400" doc:"next_page_token of the page before"`
}

// pageQuery is asked for with lists that have no filters.
type pageQuery struct{ Page }

func (q *pageQuery) page() *Page { return &q.Page }

// afterName is where the page starts in a list ordered by name.
func (p Page) afterName() (string, error) {
	key, err := base64.RawURLEncoding.DecodeString(p.Token)
	if err != nil || !storable(string(key)) {
		return "", badPage()
	}
	return string(key), nil
}

// afterNumber is where the page starts in a list ordered by number; 0: at its
// beginning.
func (p Page) afterNumber() (int64, error) {
	name, err := p.afterName()
	if err != nil || name == "" {
		return 0, err
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		return 0, badPage()
	}
	return n, nil
}

func badPage() error {
	return problem(http.StatusUnprocessableEntity, codeInvalidField, "page_token: not one that this list gave")
}

// full says that there may be entries behind a page of so many.
func (p Page) full(got int) bool { return got >= p.Size }

// nextPage is the token of the page after one that ended with last; empty:
// there is none.
func nextPage(more bool, last string) string {
	if !more {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(last))
}

// milliseconds of a duration on the wire.
func milliseconds(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// body is an answer of which only the body matters.
type body[T any] struct{ Body T }

// created is an answer that is 201 for what is new.
type created[T any] struct {
	Status int
	Body   T
}

func createdStatus(isNew bool) int {
	if isNew {
		return http.StatusCreated
	}
	return http.StatusOK
}
