package terminal

import (
	"bufio"
	"io"
	"strings"
)

// Limits of a table. A cell has a maximum number of characters, so that a line fits into the terminal. The last cell
// of a row may be longer, because no column follows it.
const (
	maxCellLength     = 60
	maxLastCellLength = 400
)

// Table writes rows of cells that are aligned under the heads of their columns. It buffers at most tableRows rows until Flush, so a long
// list is aligned part by part.
type Table struct {
	to     *bufio.Writer
	rows   [][]string
	widths []int
}

const tableRows = 1000

// NewTable returns a table that Flush writes to out. heads are the heads of the columns, which are also written if no row follows.
func NewTable(out io.Writer, heads ...string) *Table {
	t := &Table{to: bufio.NewWriter(out)}
	t.AddRow(heads...)
	return t
}

// AddRow adds a row with one cell for each column.
func (t *Table) AddRow(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		maxLength := maxCellLength
		if i == len(cells)-1 {
			maxLength = maxLastCellLength
		}
		row[i] = truncate(EscapeUnprintable(HideUnreadable(cell)), maxLength)
		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		t.widths[i] = max(t.widths[i], displayWidth(row[i]))
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
				line.WriteString(strings.Repeat(" ", t.widths[i]-displayWidth(cell)+2))
			}
		}
		_, _ = t.to.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	t.rows = t.rows[:0]
	return t.to.Flush()
}

func truncate(cell string, maxLength int) string {
	runes := []rune(cell)
	if len(runes) <= maxLength {
		return cell
	}
	return string(runes[:maxLength-3]) + "..."
}
