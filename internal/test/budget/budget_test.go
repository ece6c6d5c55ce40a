package budget_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/fleetslots/dispatcher/internal/test/budget"
)

const root, budgetFile = "../../..", "budget.txt"

var update = flag.Bool("update", false, "write budget.txt anew") //nolint:gochecknoglobals // a flag of the test

// TestNoRoomGrowsUnnoticed compares the size of the source tree with budget.txt. A figure may exceed the value in
// the file by at most 2 %, rounded down.
func TestNoRoomGrowsUnnoticed(t *testing.T) {
	t.Parallel()
	rooms, err := budget.Count(root)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(budgetFile, []byte(formatTable(rooms)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allowed := readBudget(t)
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		for i, got := range rooms[room].Values() {
			if most := allowed[room+" "+budget.Columns()[i]] * 102 / 100; got > most {
				t.Errorf("%s has %d %s, at most %d may be: make it smaller, or run `make budget` and say in the commit why it grew",
					room, got, budget.Columns()[i], most)
			}
		}
	}
}

func formatTable(rooms map[string]budget.Figures) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") }
	row(append([]string{"room"}, budget.Columns()...)...)
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		cells := []string{room}
		for _, v := range rooms[room].Values() {
			cells = append(cells, strconv.Itoa(v))
		}
		row(cells...)
	}
	_ = w.Flush()
	return out.String()
}

// readBudget returns the values of budget.txt, with keys of the form "room column". A room is a folder of the root.
func readBudget(t *testing.T) map[string]int {
	t.Helper()
	content, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string]int{}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		for i, column := range budget.Columns() {
			if len(fields) != len(budget.Columns())+1 {
				t.Fatalf("%s: %q has %d fields", budgetFile, line, len(fields))
			}
			n := 0
			if _, err := fmt.Sscan(fields[i+1], &n); err == nil {
				allowed[fields[0]+" "+column] = n
			}
		}
	}
	return allowed
}

func TestCountLeavesCommentsAndWhiteSpaceOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                 "module m\n",
		"a/a.go":                 "package a\n\n// T is a type.\ntype T interface{ F() } // of one method\n\nfunc   F()  {}\n",
		"a/a_test.go":            "package a\n",
		"a/lua/a.lua":            "local a = '--' -- a comment\n",
		"internal/test/b/b.go":   "package b\n\nfunc F() {}\n",
		"bench/b.go":             "package b\n",
		"internal/c/c_unused.go": "package c\n\nconst A, b = 1, 2\n",
	} {
		path := dir + "/" + name
		if err := os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rooms, err := budget.Count(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]budget.Figures{
		"a":             {Lines: 6, Characters: len("packageatypeTinterface{F()}funcF(){}"), Types: 1, Exported: 2, Interfaces: 1, Tests: 1, Lua: len("locala='--'")},
		"internal/test": {Tests: 3},
		"internal":      {Lines: 3, Characters: len("packagecconstA,b=1,2"), Exported: 1},
	}
	for room, figures := range want {
		if rooms[room] != figures {
			t.Errorf("%s: %+v, want %+v", room, rooms[room], figures)
		}
	}
	if len(rooms) != len(want) {
		t.Errorf("rooms %v, want %d", rooms, len(want))
	}
}
