package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// The scanners below read the forms that both databases return for a column. They turn NULL into the zero value.

// instant reads a column with a time: a timestamptz, or milliseconds since 1970.
type instant struct{ to *time.Time }

// Scan sets NULL to the zero time.
func (s instant) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*s.to = time.Time{}
	case time.Time:
		*s.to = v.UTC()
	case int64:
		*s.to = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("cannot read a time from %T", src)
	}
	return nil
}

// optionalTime reads a time that may be missing.
type optionalTime struct{ to **time.Time }

// Scan sets NULL to nil.
func (s optionalTime) Scan(src any) error {
	*s.to = nil
	if src == nil {
		return nil
	}
	var t time.Time
	*s.to = &t
	return instant{&t}.Scan(src)
}

// millis reads a number of milliseconds.
type millis struct{ to *time.Duration }

// Scan sets NULL to 0.
func (s millis) Scan(src any) error {
	var ms sql.Null[int64]
	err := ms.Scan(src)
	*s.to = time.Duration(ms.V) * time.Millisecond
	return err
}

// document reads JSON byte for byte.
type document struct{ to *json.RawMessage }

// Scan sets NULL to nil.
func (s document) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*s.to = nil
	case []byte:
		*s.to = bytes.Clone(v)
	case string:
		*s.to = json.RawMessage(v)
	default:
		return fmt.Errorf("cannot read JSON from %T", src)
	}
	return nil
}

// decoded reads a value that is stored as JSON. NULL becomes the zero value.
type decoded[T any] struct{ to *T }

func fromJSON[T any](to *T) decoded[T] { return decoded[T]{to} }

// Scan sets NULL to the zero value.
func (s decoded[T]) Scan(src any) error {
	var raw json.RawMessage
	if err := (document{&raw}).Scan(src); err != nil {
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

// Scan sets NULL and the empty text to nil.
func (s commaList) Scan(src any) error {
	var joined sql.Null[string]
	err := joined.Scan(src)
	*s.to = nil
	if joined.V != "" {
		*s.to = strings.Split(joined.V, ",")
	}
	return err
}

// optional reads a column that may be NULL and that no other scanner reads.
type optional[T any] struct{ to *T }

func opt[T any](to *T) optional[T] { return optional[T]{to} }

// Scan sets NULL to the zero value.
func (s optional[T]) Scan(src any) error {
	var v sql.Null[T]
	err := v.Scan(src)
	*s.to = v.V
	return err
}

// nullMillis returns the argument $n in {epoch} + $n * {ms}: milliseconds since 1970, or NULL if t is nil.
func nullMillis(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMilli()
}

// timeText returns a time as text, for a statement that accepts values but no expressions, such as COPY. It has the precision of stored
// times, milliseconds.
func timeText(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// nullText returns the argument for a column of JSON. It is a string, because COPY would send bytes as bytea.
func nullText(raw json.RawMessage) any {
	if raw == nil {
		return nil
	}
	return string(raw)
}

// abortFailure and abortMin are scanners for the two columns of a batch's abort rule.
type (
	abortFailure struct{ of *Batch }
	abortMin     struct{ of *Batch }
)

// Scan sets Abort to nil if the share of failed tasks is NULL or 0. Its column must come before the column of abortMin.
func (s abortFailure) Scan(src any) error {
	var share sql.Null[float64]
	if err := share.Scan(src); err != nil {
		return err
	}
	s.of.Abort = nil
	if share.V > 0 {
		s.of.Abort = &Abort{Failure: share.V}
	}
	return nil
}

// Scan sets Abort.Min if the batch has an abort rule.
func (s abortMin) Scan(src any) error {
	var tasks sql.Null[int64]
	err := tasks.Scan(src)
	if s.of.Abort != nil {
		s.of.Abort.Min = tasks.V
	}
	return err
}
