package api

import (
	"fmt"
	"strings"
)

// escapeFormula returns text as a cell that no spreadsheet interprets as a formula. It writes an apostrophe before a text that begins like
// a formula, or with a tab or a line break. It does the same inside the text after a semicolon, a tab or a line break: a spreadsheet that
// does not split lines at commas takes the part that follows for a cell, even if the CSV cell is in quotes.
func escapeFormula(text string) string {
	if text != "" && strings.ContainsRune("\t\r\n", rune(text[0])) {
		return "'" + text[:1] + escapeFormula(text[1:])
	}
	return escapeFormulas(text, true, func(r rune) string { return "'" + string(r) })
}

// escapeJSONFormula returns text, a JSON object or list, with the same value and without a part that a spreadsheet interprets as a formula.
// It writes the first character of such a part as \uXXXX.
func escapeJSONFormula(text string) string {
	return escapeFormulas(text, false, func(r rune) string { return fmt.Sprintf(`\u%04x`, r) })
}

// escapeFormulas replaces the first character of each formula in text by the result of escape. If mayStartFormula is true, a formula may
// begin at the start of text.
func escapeFormulas(text string, mayStartFormula bool, escape func(rune) string) string {
	const formulaStarts, separators = "=+-@", ";\t\r\n"
	if !strings.ContainsAny(text, formulaStarts) {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if mayStartFormula && strings.ContainsRune(formulaStarts, r) {
			out.WriteString(escape(r))
			mayStartFormula = false
			continue
		}
		// A spreadsheet may remove spaces and quotes at the start of a cell.
		mayStartFormula = strings.ContainsRune(separators, r) || mayStartFormula && (r == ' ' || r == '"')
		out.WriteRune(r)
	}
	return out.String()
}
