package api

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/fleetslots/dispatcher/operators"
)

// jsonColumn ends the name of a column whose cells are JSON, not text.
const jsonColumn = ":json"

// csvLines reads a CSV file whose first line names its columns: device, then
// the members of an object, which is the payload of a task.
type csvLines struct {
	reader  *csv.Reader
	guard   *lineGuard
	columns []csvColumn // those behind device
	number  int
}

type csvColumn struct {
	key    string // the member's name as JSON, with its colon
	isJSON bool
}

// newCSV reads the header; members says what the other columns are.
func newCSV(body io.Reader, members string) (*csvLines, error) {
	guard := &lineGuard{from: bufio.NewReaderSize(body, 4<<10)}
	if mark, _ := guard.from.Peek(3); string(mark) == "\ufeff" { // Excel's
		_, _ = guard.from.Discard(len(mark))
	}
	l := &csvLines{reader: csv.NewReader(guard), guard: guard}
	l.reader.ReuseRecord = true
	header, err := l.record()
	if errors.Is(err, io.EOF) {
		err = errors.New("no header: device, then " + members)
	}
	if err == nil {
		err = l.head(header)
	}
	return l, badLine(max(l.number, 1), err)
}

func (l *csvLines) head(header []string) error {
	if header[0] != "device" {
		return errors.New("the first column must be device")
	}
	seen := map[string]bool{}
	for _, name := range header[1:] {
		plain, isJSON := strings.CutSuffix(name, jsonColumn)
		if plain == "" || seen[plain] || !storable(plain) {
			return fmt.Errorf("column %q: each needs a name of its own", name)
		}
		seen[plain] = true
		key, _ := json.Marshal(plain) // a string cannot fail
		l.columns = append(l.columns, csvColumn{key: string(key) + ":", isJSON: isJSON})
	}
	return nil
}

func (l *csvLines) line() int { return l.number }

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

func (l *csvLines) next() (operators.NewTask, error) {
	record, err := l.record()
	if err != nil {
		return operators.NewTask{}, err
	}
	payload, err := l.payload(record[1:])
	return operators.NewTask{Device: record[0], Payload: payload}, err
}

// payload makes an object of the cells that are not empty; nil: all are.
func (l *csvLines) payload(cells []string) (json.RawMessage, error) {
	var members []string
	for i, cell := range cells {
		if cell == "" {
			continue
		}
		if !storable(cell) || l.columns[i].isJSON && strings.Contains(cell, `\u0000`) {
			return nil, errText
		}
		value := []byte(cell)
		if !l.columns[i].isJSON {
			value, _ = json.Marshal(cell) // a string cannot fail
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

// lineGuard ends a line that is too long for its reader, which would keep all
// of it. The reader reads ahead by no more than its buffer.
type lineGuard struct {
	from *bufio.Reader
	left int
}

// Read reads a part of the file.
func (g *lineGuard) Read(b []byte) (int, error) {
	if g.left <= 0 {
		return 0, errLongLine
	}
	n, err := g.from.Read(b)
	g.left -= n
	return n, err
}
