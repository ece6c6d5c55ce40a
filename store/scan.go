package store

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// The scanners below accept the forms in which either database returns a column. They turn NULL into the zero value.

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

// fromJSON returns a scanner that decodes a JSON column into target.
func fromJSON[T any](target *T) decoded[T] { return decoded[T]{target} }

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

// optional reads a column that may be NULL and that no other scanner reads.
type optional[T any] struct{ to *T }

// opt returns a scanner that stores a column in target; NULL becomes the zero value.
func opt[T any](target *T) optional[T] { return optional[T]{target} }

// Scan converts column to a T. NULL becomes the zero value.
func (s optional[T]) Scan(column any) error {
	var v sql.Null[T]
	err := v.Scan(column)
	*s.to = v.V
	return err
}

// nullMillis returns moment in milliseconds since 1970, as the argument $n of {epoch} + $n * {ms}. If moment is nil, it returns NULL.
func nullMillis(moment *time.Time) any {
	if moment == nil {
		return nil
	}
	return moment.UnixMilli()
}

// timeText returns moment as text, in milliseconds, which is the precision of stored times. It is for statements such as COPY that
// accept values but no expressions. If moment is nil, it returns nil (NULL).
func timeText(moment *time.Time) any {
	if moment == nil {
		return nil
	}
	return moment.UTC().Format("2006-01-02T15:04:05.000Z")
}

// nullText returns raw as the argument for a JSON column; nil becomes NULL. The argument is a string, because COPY would send bytes as
// bytea.
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

// Scan sets Abort.Failure from column, the share of failed tasks. If column is NULL or 0, it sets Abort to nil. This column must come
// before the column of abortMin.
func (s abortFailure) Scan(column any) error {
	var share sql.Null[float64]
	if err := share.Scan(column); err != nil {
		return err
	}
	s.of.Abort = nil
	if share.V > 0 {
		s.of.Abort = &Abort{Failure: share.V}
	}
	return nil
}

// Scan sets Abort.Min from column if the batch has an abort rule.
func (s abortMin) Scan(column any) error {
	var tasks sql.Null[int64]
	err := tasks.Scan(column)
	if s.of.Abort != nil {
		s.of.Abort.Min = tasks.V
	}
	return err
}
