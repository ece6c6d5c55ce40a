package cost

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// figure is one counted value, such as the number of statements for one report, one cycle or one batch.
type figure struct {
	subject, name string
	value         float64
}

// tolerance returns by which share a figure may change without a failure. The figures walBytes and allocations
// change a little with the state of pages and memory pools. All other figures are exact.
func (f figure) tolerance() float64 {
	switch f.name {
	case walBytes, allocations:
		return 0.1
	}
	return 0
}

func (f figure) String() string { return f.subject + ": " + f.name }

// formatFigures returns the content of the file that parseFigures reads.
func formatFigures(all []figure) []byte {
	var out bytes.Buffer
	out.WriteString("# What one report, one cycle (grant and result) and one batch cost. Written by: go test ./internal/test/cost -update\n")
	for i, f := range all {
		if i == 0 || all[i-1].subject != f.subject {
			fmt.Fprintf(&out, "\n%s\n", f.subject)
		}
		fmt.Fprintf(&out, "  %-24s %s\n", f.name, formatValue(f.value))
	}
	return out.Bytes()
}

// formatValue formats a value with two digits after the point, or none if the value is a whole number.
func formatValue(value float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 2, 64), ".00")
}

func parseFigures(t *testing.T, content string) (all []figure) {
	t.Helper()
	of := ""
	for line := range strings.Lines(content) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "" || line[0] == '#':
		case line[0] != ' ':
			of = line
		default:
			name, value := "", strings.TrimSpace(line)
			if at := strings.LastIndexByte(value, ' '); at > 0 {
				name, value = strings.TrimSpace(value[:at]), value[at+1:]
			}
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("%s: %q: %v", costFile, line, err)
			}
			all = append(all, figure{of, name, number})
		}
	}
	return all
}

// compareFigures returns a line for each figure that changed, with the old and the new value.
func compareFigures(before, now []figure) (changes []string) {
	earlier := make(map[string]float64)
	for _, f := range before {
		earlier[f.String()] = f.value
	}
	for _, f := range now {
		was, known := earlier[f.String()]
		delete(earlier, f.String())
		switch {
		case !known:
			changes = append(changes, fmt.Sprintf("%s was not counted before, now %s", f, formatValue(f.value)))
		case math.Abs(f.value-was) > was*f.tolerance()+0.005:
			changes = append(changes, fmt.Sprintf("%s moved from %s to %s (tolerance %.0f %%)", f, formatValue(was), formatValue(f.value), 100*f.tolerance()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(earlier)) {
		changes = append(changes, name+" is not counted any more")
	}
	return changes
}

// TestMovedFiguresAreNamed checks which changes are reported: any change of an exact figure, and a change of any other figure by more than
// a tenth.
func TestMovedFiguresAreNamed(t *testing.T) {
	t.Parallel()
	before := []figure{{"cycle", statements, 7}, {"cycle", walBytes, 1000}, {"cycle", allocations, 500}, {"report", statements, 0.25}}
	if moved := compareFigures(parseFigures(t, string(formatFigures(before))), before); len(moved) > 0 {
		t.Errorf("nothing moved, and yet: %q", moved)
	}
	now := []figure{{"cycle", statements, 8}, {"cycle", walBytes, 1099}, {"cycle", allocations, 440}, {"report", redisScripts, 1}}
	want := []string{
		"cycle: statements moved from 7 to 8 (tolerance 0 %)",
		"cycle: allocations moved from 500 to 440 (tolerance 10 %)",
		"report: Redis scripts was not counted before, now 1",
		"report: statements is not counted any more",
	}
	if got := compareFigures(before, now); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("moved: %q, want %q", got, want)
	}
}
