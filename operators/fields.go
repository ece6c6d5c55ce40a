package operators

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"iter"
	"net/url"
	"reflect"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// Policy limits how often something may start.
type Policy = policy.Policy

// PolicyWindow is a window of a sliding policy.
type PolicyWindow = policy.Window

// WarningList contains the warnings of a response.
type WarningList struct {
	Warnings []string `json:"warnings,omitempty" readOnly:"true" doc:"Possible mistakes in the request, which was done"`
}

// Time is a time as the API writes it: RFC 3339, UTC, with milliseconds.
type Time struct{ time.Time }

// MarshalJSON returns the time as a JSON string in RFC 3339, UTC, with milliseconds.
func (t Time) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
}

// Change is one field of a merge patch (RFC 7396). The zero value leaves the field as it is.
type Change[T any] struct {
	Present bool
	Value   *T // nil sets the field to its default
}

// Set returns a Change that sets a field to value.
func Set[T any](value T) Change[T] { return Change[T]{Present: true, Value: &value} }

// Default returns a Change that sets a field to its default.
func Default[T any]() Change[T] { return Change[T]{Present: true} }

// MarshalJSON returns the new value, or null for the default.
func (c Change[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.Value) }

// UnmarshalJSON decodes the new value from data and records that the field is present. An empty string means the same as null.
func (c *Change[T]) UnmarshalJSON(data []byte) error {
	c.Present = true
	if string(data) == `""` {
		return nil
	}
	return json.Unmarshal(data, &c.Value)
}

// Query returns the query parameters of the pairs (name, value) whose value is not empty.
func Query(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}

// queryParams returns the query parameters of filter, a struct whose fields have the tag query. It leaves out fields with the zero value.
func queryParams(filter any) url.Values {
	query, fields := url.Values{}, reflect.ValueOf(filter)
	for field, value := range fields.Fields() {
		name, repeats := strings.CutSuffix(field.Tag.Get("query"), ",explode")
		if value.IsZero() {
			continue
		}
		switch v := value.Interface().(type) {
		case time.Time:
			query.Set(name, v.UTC().Format(time.RFC3339Nano))
		case []string:
			if query.Set(name, strings.Join(v, ",")); repeats {
				query[name] = v
			}
		default:
			query.Set(name, fmt.Sprint(v))
		}
	}
	return query
}

type keyOfContext struct{}

// WithKey returns a context with an Idempotency-Key of 1 to 255 visible ASCII characters for a call that creates
// something. Within 24 hours, the same request with this key takes effect once, even if several processes send it. Later it
// takes effect again. Without WithKey, each call makes a new key.
func WithKey(ctx context.Context, idempotencyKey string) context.Context {
	return context.WithValue(ctx, keyOfContext{}, idempotencyKey)
}

// idempotencyKey returns the Idempotency-Key of ctx (see WithKey), or a new random key.
func idempotencyKey(ctx context.Context) string {
	if key, ok := ctx.Value(keyOfContext{}).(string); ok {
		return key
	}
	return rand.Text()
}

func callJSON[Answer any](ctx context.Context, client *Client, request Request) (answer Answer, err error) {
	err = client.Do(ctx, request, &answer)
	return answer, err
}

// listEntries yields the entries of the list that request reads, decoded, page by page. It ends after an error.
func listEntries[Entry any](ctx context.Context, client *Client, request Request) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		entries, _ := client.List(ctx, request.Path, request.Query, 0)
		for text, err := range entries {
			var entry Entry
			if err == nil {
				err = json.Unmarshal(text, &entry)
			}
			if !yield(entry, err) || err != nil {
				return
			}
		}
	}
}
