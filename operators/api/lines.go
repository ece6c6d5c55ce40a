package api

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/operators"
)

const maxLine = 128 << 10 // bytes of one line; more than maxPayload, because the payload may be escaped

// listEntry is one entry of a list of tasks or devices.
type listEntry[T any] struct {
	value    T
	position int   // number of its line, counted from 1, or its index in a JSON list
	err      error // if it is set, value is invalid and no entry follows. It is io.EOF after the last line of CSV or NDJSON
}

// bodyStreamType returns the media type of a request body in lines, CSV or NDJSON, or an empty string for any other body.
func bodyStreamType(ctx huma.Context) (mediaType string) {
	contentType, _, _ := mime.ParseMediaType(ctx.Header("Content-Type"))
	if contentType != operators.TypeCSV && contentType != operators.TypeNDJSON {
		return ""
	}
	return contentType
}

// readLines yields the entries in the lines of body, which has the media type contentType, CSV or NDJSON. memberNames lists the members of
// an entry in NDJSON, for error messages.
func readLines[Entry any](body io.Reader, contentType, memberNames string, format csvFormat[Entry]) iter.Seq[listEntry[Entry]] {
	next := (&ndjsonReader[Entry]{scanner: newLineScanner(body), members: memberNames}).next
	if contentType == operators.TypeCSV {
		next = newCSVReader(body, format).next
	}
	return func(yield func(listEntry[Entry]) bool) {
		for l := next(); yield(l) && l.err == nil; {
			l = next()
		}
	}
}

var errLongLine = fmt.Errorf("longer than %d bytes", maxLine)

// ndjsonReader reads one JSON object from each line. It skips empty lines.
type ndjsonReader[T any] struct {
	scanner *bufio.Scanner
	members string
	number  int
}

func newLineScanner(body io.Reader) *bufio.Scanner {
	scanner := bufio.NewScanner(body)
	scanner.Buffer(make([]byte, 0, 4<<10), maxLine)
	return scanner
}

// next returns the next line that is not empty.
func (n *ndjsonReader[T]) next() (entry listEntry[T]) {
	for n.scanner.Scan() {
		n.number++
		if text := bytes.TrimSpace(n.scanner.Bytes()); len(text) > 0 {
			entry.position, entry.err = n.number, readLine(text, &entry.value, n.members)
			return entry
		}
	}
	switch err := n.scanner.Err(); {
	case err == nil:
		return listEntry[T]{position: n.number, err: io.EOF}
	case errors.Is(err, bufio.ErrTooLong):
		return listEntry[T]{position: n.number + 1, err: errLongLine}
	default:
		return listEntry[T]{position: n.number + 1, err: err}
	}
}

const exampleTime = "a time such as 2026-03-01T04:05:06Z"

// readLine decodes text, a JSON object, into entry with strict checks. memberNames lists its members, for error messages.
func readLine(text []byte, entry any, memberNames string) error {
	if err := checkStrictJSON(text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(entry); err != nil {
		if name := invalidTimeField(text); name != "" && !isUnknownFieldError(err) {
			return fmt.Errorf("%s: must be %s", name, exampleTime)
		}
		return fmt.Errorf("must be a JSON object with %s: %w", memberNames, err)
	}
	if d.More() {
		return errors.New("more than one JSON value")
	}
	return nil
}

// invalidTimeField returns the name of the first member of a task entry that must be a time and is not. If all times are valid, it returns
// an empty string.
func invalidTimeField(text []byte) (fieldName string) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(text, &members) // readLine has parsed the text as an object
	for _, name := range []string{"not_before", "not_after"} {
		if value := members[name]; value != nil && json.Unmarshal(value, &time.Time{}) != nil {
			return name
		}
	}
	return ""
}

// jsonColumn is the suffix of the name of a column whose cells are JSON instead of text.
const jsonColumn = ":json"

// csvFormat describes a CSV file. Its first line names the columns: device, then the columns in fields, which set a field of an entry, and
// the members of an object.
type csvFormat[T any] struct {
	members    string // names the members of the object, for error messages
	textOnly   bool   // no cell is JSON
	newEntry   func(device string) T
	fields     map[string]func(entry *T, cell string) error
	setMembers func(entry *T, object json.RawMessage) error
}

type csvReader[T any] struct {
	csvFormat[T]

	reader  *csv.Reader
	guard   *limitedReader
	columns []csvColumn[T] // the columns after device; nil until the header line is read
	number  int            // number of the line that was read last
}

type csvColumn[T any] struct {
	name   string
	key    string                            // name as JSON, followed by a colon
	set    func(entry *T, cell string) error // nil: the column has a member of the object
	isJSON bool
}

func newCSVReader[T any](body io.Reader, format csvFormat[T]) *csvReader[T] {
	from := bufio.NewReaderSize(body, 4<<10)
	if mark, _ := from.Peek(3); string(mark) == "\ufeff" { // byte order mark that Excel writes
		_, _ = from.Discard(len(mark))
	}
	guard := &limitedReader{from: from, limitErr: errLongLine}
	r := &csvReader[T]{csvFormat: format, reader: csv.NewReader(guard), guard: guard}
	r.reader.ReuseRecord = true
	return r
}

// next returns the next line after the header line.
func (r *csvReader[T]) next() (entry listEntry[T]) {
	if r.columns == nil {
		entry.err = r.readHeader()
	}
	if entry.err == nil {
		entry.value, entry.err = r.readEntry()
	}
	entry.position = r.number
	return entry
}

func (r *csvReader[T]) readHeader() error {
	header, err := r.readRecord()
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("no header: must be device, then " + r.members)
	case err != nil:
		return err
	case header[0] != "device":
		return errors.New("the first column must be device")
	}
	r.columns = make([]csvColumn[T], 0, len(header))
	seen := map[string]bool{}
	for _, name := range header[1:] {
		plain, isJSON := strings.CutSuffix(name, jsonColumn)
		set := r.fields[name]
		switch {
		case plain == "" || seen[plain] || !isStorable(plain):
			return fmt.Errorf("column %q: each column must have a unique name", name)
		case isJSON && r.textOnly:
			return fmt.Errorf("%s are strings: no column name may end in %s", r.members, jsonColumn)
		case strings.HasPrefix(name, ":") && set == nil:
			return fmt.Errorf("column %q: the only names with a colon at the start are %s", name, strings.Join(slices.Sorted(maps.Keys(r.fields)), ", "))
		}
		seen[plain] = true
		r.columns = append(r.columns, csvColumn[T]{plain, quoteJSON(plain) + ":", set, isJSON})
	}
	return nil
}

// readRecord returns the cells of the next line, or io.EOF after the last line.
func (r *csvReader[T]) readRecord() ([]string, error) {
	r.guard.left = maxLine
	record, err := r.reader.Read()
	var bad *csv.ParseError
	switch {
	case errors.As(err, &bad):
		r.number = bad.StartLine
		return nil, bad.Err
	case err != nil:
		r.number++
		return nil, err
	}
	r.number, _ = r.reader.FieldPos(0)
	return record, nil
}

// readEntry reads the next line as an entry. Empty cells are left out.
func (r *csvReader[T]) readEntry() (entry T, err error) {
	record, err := r.readRecord()
	if err != nil {
		return entry, err
	}
	entry = r.newEntry(record[0])
	var members []string
	for i, cell := range record[1:] {
		column := r.columns[i]
		switch {
		case cell == "":
		case !isStorable(cell) || column.isJSON && strings.Contains(cell, `\u0000`):
			return entry, errUnstorableText
		case column.set != nil:
			if err := column.set(&entry, cell); err != nil {
				return entry, fmt.Errorf("%s: %w", strings.TrimPrefix(column.name, ":"), err)
			}
		case column.isJSON && !json.Valid([]byte(cell)):
			return entry, fmt.Errorf("column %d: not JSON", i+2)
		case column.isJSON:
			members = append(members, column.key+cell)
		default:
			members = append(members, column.key+quoteJSON(cell))
		}
	}
	if members == nil {
		return entry, nil
	}
	return entry, r.setMembers(&entry, json.RawMessage("{"+strings.Join(members, ",")+"}"))
}

func quoteJSON(text string) string {
	quoted, _ := json.Marshal(text) // a string always marshals
	return string(quoted)
}
