package terminal

import (
	"bufio"
	"io"
	"strings"
)

// Maximum number of characters of a cell: a line should fit into the terminal. The last cell of a row may be longer, because no column
// follows it.
const (
	longestCell = 60
	longestLast = 200
)

// Table aligns rows under their heads. It buffers at most tableRows rows until Flush, so a long list is aligned part by part.
type Table struct {
	to   *bufio.Writer
	rows [][]string
	wide []int
}

const tableRows = 1000

// NewTable returns a table with these heads, which are also written if no row follows.
func NewTable(to io.Writer, heads ...string) *Table {
	t := &Table{to: bufio.NewWriter(to)}
	t.Row(heads...)
	return t
}

// Row adds a row.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		most := longestCell
		if i == len(cells)-1 {
			most = longestLast
		}
		row[i] = short(Safe(Readable(cell)), most)
		if i == len(t.wide) {
			t.wide = append(t.wide, 0)
		}
		t.wide[i] = max(t.wide[i], width(row[i]))
	}
	t.rows = append(t.rows, row)
	if len(t.rows) >= tableRows {
		_ = t.Flush() // the writer keeps its first error
	}
}

// Flush writes the buffered rows.
func (t *Table) Flush() error {
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", t.wide[i]-width(cell)+2))
			}
		}
		_, _ = t.to.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	t.rows = t.rows[:0]
	return t.to.Flush()
}

func short(cell string, most int) string {
	runes := []rune(cell)
	if len(runes) <= most {
		return cell
	}
	return string(runes[:most-3]) + "..."
}
