package pages_test

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/internal/test/pages"
)

const root = "../../.."

func read(t *testing.T) map[string]string {
	t.Helper()
	all, err := pages.Read(root)
	must.Succeed(t, err)
	return all
}

// TestLinksLeadSomewhere checks every link to a file of the repository, and every link to a heading.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all, count := read(t), 0
	anchors := map[string]map[string]bool{} // by page: a page has many links to it
	for name, text := range all {
		anchors[name] = pages.Anchors(text)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, missing := range pages.UndefinedReferences(all[name]) {
			t.Errorf("%s: [%s] has no target", name, missing)
		}
		for _, target := range pages.Links(all[name]) {
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			count++
			file, anchor, hasAnchor := strings.Cut(target, "#")
			if file == "" {
				file = name
			} else {
				file = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: %s leads to no file", name, target)
			} else if hasAnchor && !anchors[file][anchor] {
				t.Errorf("%s: %s leads to no heading", name, target)
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d links were found", count)
	}
}

// TestNamedTestsExist checks that every test named on the pages exists, such as the tests of the promises and of the threats.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	declared, err := pages.TestNames(root)
	must.Succeed(t, err)
	all, count := read(t), 0
	anchors := map[string]map[string]bool{} // by page: a page has many links to it
	for name, text := range all {
		anchors[name] = pages.Anchors(text)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasSuffix(name, "CHANGELOG.md") {
			continue // it may name tests of the past
		}
		commands := regexp.MustCompile(`-run ('[^']*'|\S+)`)
		for _, named := range testWord().FindAllString(commands.ReplaceAllString(all[name], ""), -1) {
			count++
			if !declared[named] {
				t.Errorf("%s: there is no test %s", name, named)
			}
		}
		for _, begun := range testWord().FindAllString(strings.Join(commands.FindAllString(all[name], -1), " "), -1) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(declared)), func(test string) bool { return strings.HasPrefix(test, begun) }) {
				t.Errorf("%s: no test begins with %s", name, begun)
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d names of tests were found", count)
	}
}

func testWord() *regexp.Regexp { return regexp.MustCompile(`\bTest[A-Z]\w+`) }

// TestEveryThreatHasATest checks that each row of the threat model in docs/security.md names a test.
func TestEveryThreatHasATest(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(read(t)["docs/security.md"], "\n## Threats\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := tableRows(section)
	for _, row := range rows {
		if !strings.Contains(row[len(row)-1], "`Test") {
			t.Errorf("%s, %s: no test", row[0], row[1])
		}
	}
	if len(rows) < 15 {
		t.Errorf("%d threats were found", len(rows))
	}
}

// TestEveryComparisonHasASource checks the table of docs/alternatives.md: each cell has a link or the words that nothing was found.
func TestEveryComparisonHasASource(t *testing.T) {
	t.Parallel()
	rows := tableRows(read(t)["docs/alternatives.md"])
	for _, row := range rows {
		for i, cell := range row[1:] {
			if !strings.Contains(cell, "](") && !strings.Contains(cell, "][") && !strings.Contains(cell, "not found") {
				t.Errorf("%s, column %d: %q has no source", row[0], i+1, cell)
			}
		}
	}
	if len(rows) < 12 {
		t.Errorf("%d rows were found", len(rows))
	}
}

// tableRows returns the cells of the rows of all tables, without their heads.
func tableRows(text string) (rows [][]string) {
	inBody := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inBody = false
		case strings.HasPrefix(line, "| ---"):
			inBody = true
		case inBody:
			cells := strings.Split(strings.Trim(line, "|"), " | ")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}

func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if words := len(strings.Fields(read(t)["README.md"])); words > 900 {
		t.Errorf("README.md has %d words, at most 900", words)
	}
}

func TestAnchorsAreThoseOfGitHub(t *testing.T) {
	t.Parallel()
	page := "# A page\n## `doctor`: is it well?\n## Twice\n```\n# no heading\n```\n## Twice\n[a](#twice-1) [b\nc](x.md#y) `[d]` [x][e] [x][f]\n[e]: z.md\n"
	if got, want := slices.Sorted(maps.Keys(pages.Anchors(page))), []string{"a-page", "doctor-is-it-well", "twice", "twice-1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := pages.Links(page), []string{"#twice-1", "x.md#y", "z.md"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := pages.UndefinedReferences(page), []string{"f"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
