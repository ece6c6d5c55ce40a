package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// scannersFor replaces each pointer in targets by the scanner for its type, and returns targets. The scanners accept the forms in which
// Postgres and SQLite return a column, and turn NULL into the zero value.
func scannersFor(targets []any) (scanners []any) {
	for i, target := range targets {
		targets[i] = scannerFor(target)
	}
	return targets
}

// scannerFor returns the scanner that reads a column into target. It returns target itself if database/sql reads its type.
func scannerFor(target any) (scanner any) {
	switch to := target.(type) {
	case *time.Time:
		return instant{to}
	case **time.Time:
		return optionalTime{to}
	case *time.Duration:
		return millis{to}
	case *json.RawMessage:
		return document{to}
	case *[]Window:
		return decoded[[]Window]{to}
	case *[]string:
		return decoded[[]string]{to}
	case *map[string]string:
		return decoded[map[string]string]{to}
	case *string:
		return optional[string]{to}
	case *int:
		return optional[int]{to}
	case *int64:
		return optional[int64]{to}
	case *bool:
		return optional[bool]{to}
	case *EndCause:
		return optional[EndCause]{to}
	case *Reach:
		return optional[Reach]{to}
	}
	return target
}

// instant reads a column with a time: a timestamptz, or milliseconds since 1970.
type instant struct{ to *time.Time }

// Scan converts column, a time of the database, to a time.Time. NULL becomes the zero time.
func (s instant) Scan(column any) error {
	switch v := column.(type) {
	case nil:
		*s.to = time.Time{}
	case time.Time:
		*s.to = v.UTC()
	case int64:
		*s.to = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("cannot read a time from %T", column)
	}
	return nil
}

// optionalTime reads a time that may be missing.
type optionalTime struct{ to **time.Time }

// Scan converts column, a time of the database, to a *time.Time. NULL becomes nil.
func (s optionalTime) Scan(column any) error {
	*s.to = nil
	if column == nil {
		return nil
	}
	var t time.Time
	*s.to = &t
	return instant{&t}.Scan(column)
}

// millis reads a number of milliseconds.
type millis struct{ to *time.Duration }

// Scan converts column, a number of milliseconds, to a duration. NULL becomes 0.
func (s millis) Scan(column any) error {
	var ms sql.Null[int64]
	err := ms.Scan(column)
	*s.to = time.Duration(ms.V) * time.Millisecond
	return err
}

// document reads a JSON document as text, byte for byte.
type document struct{ to *json.RawMessage }

// Scan converts column, a JSON document, to a json.RawMessage. NULL becomes nil.
func (s document) Scan(column any) error {
	switch v := column.(type) {
	case nil:
		*s.to = nil
	case []byte:
		*s.to = bytes.Clone(v)
	case string:
		*s.to = json.RawMessage(v)
	default:
		return fmt.Errorf("cannot read JSON from %T", column)
	}
	return nil
}

// decoded reads a value that is stored as JSON. NULL becomes the zero value.
type decoded[T any] struct{ to *T }

// Scan decodes column, a JSON document, into a T. NULL becomes the zero value.
func (s decoded[T]) Scan(column any) error {
	var raw json.RawMessage
	if err := (document{&raw}).Scan(column); err != nil {
		return err
	}
	var none T
	*s.to = none
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, s.to)
}

// commaList reads a list of words that are joined by commas.
type commaList struct{ to *[]string }

// Scan splits column, a list separated by commas, into its elements. NULL and the empty text become nil.
func (s commaList) Scan(column any) error {
	var joined sql.Null[string]
	err := joined.Scan(column)
	*s.to = nil
	if joined.V != "" {
		*s.to = strings.Split(joined.V, ",")
	}
	return err
}

// optional reads a column of the type T that may be NULL.
type optional[T any] struct{ to *T }

// Scan converts column to a T. NULL becomes the zero value.
func (s optional[T]) Scan(column any) error {
	if v, ok := column.(T); ok { // the usual case, without the allocation of sql.Null
		*s.to = v
		return nil
	}
	var v sql.Null[T]
	err := v.Scan(column)
	*s.to = v.V
	return err
}

// millisOrNull returns moment in milliseconds since 1970, as the argument $n of {epoch} + $n * {ms}. If moment is nil, it returns NULL.
func millisOrNull(moment *time.Time) any {
	if moment == nil {
		return nil
	}
	return moment.UnixMilli()
}

// timeTextOrNull returns moment as text with milliseconds, the precision of stored times. COPY needs the text, because it accepts no
// expressions. If moment is nil, it returns NULL.
func timeTextOrNull(moment *time.Time) any {
	if moment == nil {
		return nil
	}
	return moment.UTC().Format("2006-01-02T15:04:05.000Z")
}

// jsonTextOrNull returns raw as the argument for a JSON column. The argument is a string, because COPY would send bytes as bytea. If raw is
// nil, it returns NULL.
func jsonTextOrNull(raw json.RawMessage) any {
	if raw == nil {
		return nil
	}
	return string(raw)
}

// abortRule reads the two columns of the abort rule of a Batch, one after the other: the share of failed tasks, then the minimum number of
// tasks.
type abortRule struct{ of *Batch }

// Scan sets Abort.Failure from a share, or Abort.Min from a number. A share of 0 means that the batch has no abort rule.
func (s abortRule) Scan(column any) error {
	switch v := column.(type) {
	case float64:
		if v > 0 {
			s.of.Abort = &Abort{Failure: v}
		}
	case int64:
		if s.of.Abort != nil {
			s.of.Abort.Min = v
		}
	default:
		return fmt.Errorf("cannot read an abort rule from %T", column)
	}
	return nil
}
