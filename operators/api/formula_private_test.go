package api

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// hostileTexts are texts that spreadsheets interpret as formulas, at the start of a cell or behind a separator.
func hostileTexts() []string {
	var all []string
	for _, start := range []string{"", "y;", "y,", "y\t", "y\n", "y\r\n", "\t", "\n", ";;", "y; ", `y;"`, `y"; "`, "a;=1;"} {
		for _, formula := range []string{"=1+1", "+1", "-1", "@SUM(A1)", `=cmd|' /C calc'!A0`} {
			all = append(all, start+formula)
		}
	}
	return all
}

// TestNoCellIsAFormula checks the cells of texts and of JSON: no spreadsheet sees a formula, whatever separates its cells.
func TestNoCellIsAFormula(t *testing.T) {
	t.Parallel()
	for _, hostile := range hostileTexts() {
		asJSON, err := json.Marshal(map[string]string{hostile: hostile})
		must.Succeed(t, err)
		asText, err := json.Marshal(hostile)
		must.Succeed(t, err)
		var line bytes.Buffer
		w := csv.NewWriter(&line)
		_ = w.Write([]string{"7", cellText(asText), escapeFormula("output." + hostile), cellText(asJSON), "x"})
		w.Flush()
		for _, separators := range []string{",", ";", "\t"} {
			for _, cell := range spreadsheetCells(t, line.String(), separators) {
				if cell = strings.Trim(cell, ` "`+"\t\r\n"); cell != "" && strings.ContainsRune("=+-@", rune(cell[0])) {
					t.Errorf("%q, split at %q: the cell %q is a formula; the line is %q", hostile, separators, cell, line.String())
				}
			}
		}
		var back map[string]string
		if err := json.Unmarshal([]byte(cellText(asJSON)), &back); err != nil || back[hostile] != hostile {
			t.Errorf("%q changed in JSON: %q, %v", hostile, back, err)
		}
	}
	for _, harmless := range []string{"", "ar-7", "a=b; c", "rtt -3, loss +1", "x;y", "2026-03-01"} {
		if got := escapeFormula(harmless); got != harmless {
			t.Errorf("%q became %q", harmless, got)
		}
	}
}

// spreadsheetCells returns the cells of text as a spreadsheet with this separator reads them. For a comma, text is read as CSV. For any
// other separator, a cell ends at the separator or at the end of a line, even inside quotes.
func spreadsheetCells(t *testing.T, text, separator string) []string {
	t.Helper()
	if separator == "," {
		r := csv.NewReader(strings.NewReader(text))
		cells, err := r.Read()
		must.Succeed(t, err)
		return cells
	}
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(separator+"\r\n", r) })
}
