package api

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// lineReader reads the tasks or devices of a body one after the other.
type lineReader[T any] interface {
	// next returns the next entry, or io.EOF after the last line. The caller adds the line number to the error of a bad line.
	next() (T, error)
	// lineNumber returns the number of the line that was read last, counted from 1.
	lineNumber() int
}

// ndjson reads one JSON object from each line. It skips empty lines.
type ndjson[T any] struct {
	scanner *bufio.Scanner
	members string // names of the members of an entry, for error messages
	number  int
}

// newNDJSON returns a reader of body, which has a JSON object in each line. members names the members of an entry, for error messages.
func newNDJSON[T any](body io.Reader, members string) *ndjson[T] {
	scanner := bufio.NewScanner(body)
	scanner.Buffer(make([]byte, 0, 4<<10), maxLine)
	return &ndjson[T]{scanner: scanner, members: members}
}

// lineNumber returns the number of the line that was read last, counted from 1.
func (n *ndjson[T]) lineNumber() int { return n.number }

// next returns the entry in the next line that is not empty, or io.EOF after the last line.
func (n *ndjson[T]) next() (entry T, err error) {
	for n.scanner.Scan() {
		n.number++
		if text := bytes.TrimSpace(n.scanner.Bytes()); len(text) > 0 {
			err = readLine(text, &entry, n.members)
			return entry, err
		}
	}
	if err = n.scanner.Err(); err == nil {
		return entry, io.EOF
	}
	n.number++
	if errors.Is(err, bufio.ErrTooLong) {
		err = errLongLine
	}
	return entry, err
}

var errLongLine = fmt.Errorf("longer than %d bytes", maxLine)

// readLine decodes text, a JSON object, into entry with strict checks. members names its members, for error messages.
func readLine(text []byte, entry any, members string) error {
	if err := checkStrictJSON(text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(entry); err != nil {
		if name := invalidTimeField(text); name != "" && !isUnknownField(err) {
			return fmt.Errorf("%s: must be %s", name, exampleTime)
		}
		return fmt.Errorf("must be a JSON object with %s: %w", members, err)
	}
	if d.More() {
		return errors.New("more than one JSON value")
	}
	return nil
}

// jsonColumn is the suffix of the name of a column whose cells are JSON instead of text.
const jsonColumn = ":json"

// csvLines reads a CSV file. Its first line names the columns: device, then the members of an object. For a batch,
// this object is the payload of the line's task.
type csvLines struct {
	reader  *csv.Reader
	guard   *limitedReader
	columns []csvColumn // the columns after device
	number  int
}

// csvColumn is a column of a CSV file for one member of an object.
type csvColumn struct {
	name   string
	key    string // name of the member as JSON, followed by a colon
	isJSON bool
}

// newCSV reads the header line of a CSV body. members names the columns that are allowed besides device, for error messages.
func newCSV(body io.Reader, members string) (*csvLines, error) {
	from := bufio.NewReaderSize(body, 4<<10)
	if mark, _ := from.Peek(3); string(mark) == "\ufeff" { // byte order mark that Excel writes
		_, _ = from.Discard(len(mark))
	}
	guard := &limitedReader{from: from, limitErr: errLongLine}
	l := &csvLines{reader: csv.NewReader(guard), guard: guard}
	l.reader.ReuseRecord = true
	header, err := l.record()
	if errors.Is(err, io.EOF) {
		err = errors.New("no header: must be device, then " + members)
	}
	if err == nil {
		err = l.readHeader(header)
	}
	return l, lineProblem(max(l.number, 1), err)
}

// readHeader stores the columns that header, the cells of the first line, names.
func (l *csvLines) readHeader(header []string) error {
	if header[0] != "device" {
		return errors.New("the first column must be device")
	}
	seen := map[string]bool{}
	for _, name := range header[1:] {
		plain, isJSON := strings.CutSuffix(name, jsonColumn)
		if plain == "" || seen[plain] || !isStorable(plain) {
			return fmt.Errorf("column %q: each column must have a unique name", name)
		}
		seen[plain] = true
		key, _ := json.Marshal(plain) // a string always marshals
		l.columns = append(l.columns, csvColumn{name: plain, key: string(key) + ":", isJSON: isJSON})
	}
	return nil
}

// lineNumber returns the number of the line that was read last, counted from 1.
func (l *csvLines) lineNumber() int { return l.number }

// record returns the cells of the next line, or io.EOF after the last line.
func (l *csvLines) record() ([]string, error) {
	l.guard.left = maxLine
	record, err := l.reader.Read()
	var bad *csv.ParseError
	switch {
	case errors.As(err, &bad):
		l.number = bad.StartLine
		return nil, bad.Err
	case err != nil:
		l.number++
		return nil, err
	}
	l.number, _ = l.reader.FieldPos(0)
	return record, nil
}

// next returns the next line as a task: its first cell is the device, and its other cells are the payload. deviceCSV reads the devices of
// an import in the same way, and takes their tags from the payload.
func (l *csvLines) next() (operators.NewTask, error) {
	record, err := l.record()
	if err != nil {
		return operators.NewTask{}, err
	}
	payload, err := l.payload(record[1:])
	return operators.NewTask{Device: record[0], Payload: payload}, err
}

// payload returns an object of the cells that are not empty, or nil if all cells are empty.
func (l *csvLines) payload(cells []string) (json.RawMessage, error) {
	var members []string
	for i, cell := range cells {
		if cell == "" {
			continue
		}
		if !isStorable(cell) || l.columns[i].isJSON && strings.Contains(cell, `\u0000`) {
			return nil, errUnstorableText
		}
		value := []byte(cell)
		if !l.columns[i].isJSON {
			value, _ = json.Marshal(cell) // a string always marshals
		} else if !json.Valid(value) {
			return nil, fmt.Errorf("column %d: not JSON", i+2)
		}
		members = append(members, l.columns[i].key+string(value))
	}
	if members == nil {
		return nil, nil
	}
	return json.RawMessage("{" + strings.Join(members, ",") + "}"), nil
}
