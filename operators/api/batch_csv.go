package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// taskMembers lists the members of a task, for error messages.
const taskMembers = "device, payload, priority, not_before and not_after"

// taskColumn is a CSV column for a field of the task itself. All other columns are members of the payload.
type taskColumn struct {
	name string
	read func(t *operators.NewTask, cell string) error
}

// taskColumns returns the columns for fields of the task.
func taskColumns() []taskColumn {
	return []taskColumn{
		{":priority", func(t *operators.NewTask, cell string) error {
			n, err := strconv.Atoi(cell)
			t.Priority = &n
			return formatError("a whole number", err)
		}},
		{":not_before", func(t *operators.NewTask, cell string) error { return readTime(cell, &t.NotBefore) }},
		{":not_after", func(t *operators.NewTask, cell string) error { return readTime(cell, &t.NotAfter) }},
	}
}

// readTime stores the time in cell, in RFC 3339, in field.
func readTime(cell string, field **time.Time) error {
	at, err := time.Parse(time.RFC3339, cell)
	*field = &at
	return formatError(exampleTime, err)
}

const exampleTime = "a time such as 2026-03-01T04:05:06Z"

// formatError returns the error for a value that could not be parsed, which says the form that the value must have (expected). err is the
// error of the parser. If it is nil, formatError returns nil.
func formatError(expected string, err error) error {
	if err == nil {
		return nil
	}
	return errors.New("must be " + expected)
}

// taskCSV reads a CSV file with a column for each member of the tasks' payloads, and optional columns for fields of the task.
type taskCSV struct {
	*csvLines
	taskFields []*taskColumn // one entry for each column after device; nil means a member of the payload
}

// newTaskCSV reads the header line of body, a CSV file of tasks, and returns a reader of the tasks.
func newTaskCSV(body io.Reader) (taskCSV, error) {
	lines, err := newCSV(body, "the members of the payload")
	l := taskCSV{csvLines: lines}
	known := taskColumns()
	for _, c := range lines.columns {
		i := slices.IndexFunc(known, func(column taskColumn) bool { return column.name == c.name })
		switch {
		case i >= 0 && !c.isJSON:
			l.taskFields = append(l.taskFields, &known[i])
		case strings.HasPrefix(c.name, ":") && err == nil:
			err = lineProblem(1, fmt.Errorf("column %q: a name with a colon at its start must be :priority, :not_before or :not_after", c.name))
		default:
			l.taskFields = append(l.taskFields, nil)
		}
	}
	return l, err
}

// next returns the task in the next line, or io.EOF after the last line.
func (l taskCSV) next() (task operators.NewTask, err error) {
	record, err := l.record()
	if err != nil {
		return task, err
	}
	task.Device = record[0]
	cells := record[1:]
	for i, c := range l.taskFields {
		if c == nil || cells[i] == "" {
			continue
		}
		if err := c.read(&task, cells[i]); err != nil {
			return task, fmt.Errorf("%s: %w", strings.TrimPrefix(c.name, ":"), err)
		}
		cells[i] = ""
	}
	task.Payload, err = l.payload(cells)
	return task, err
}

// invalidTimeField returns the name of the first member of a task entry that must be a time and is not. If all times are valid, it returns
// an empty string.
func invalidTimeField(text []byte) string {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(text, &members) // readLine has parsed the text as an object
	for _, name := range []string{"not_before", "not_after"} {
		if value := members[name]; value != nil && json.Unmarshal(value, &time.Time{}) != nil {
			return name
		}
	}
	return ""
}
