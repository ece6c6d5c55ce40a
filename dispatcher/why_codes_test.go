package dispatcher_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// TestEveryCodeIsTested checks that the file why_test.go mentions every code of a cause.
func TestEveryCodeIsTested(t *testing.T) {
	t.Parallel()
	tests, err := os.ReadFile("why_test.go")
	must.Succeed(t, err)
	for name := range codeNames(t) {
		if !strings.Contains(string(tests), "decision."+name) {
			t.Errorf("%s: no test gets it", name)
		}
	}
}

// codeNames returns the exported codes of causes, by the names of their constants.
func codeNames(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range []string{"obstacle.go", "causes.go", "ended.go"} {
		text, err := os.ReadFile("decision/" + name)
		must.Succeed(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\t(Code[A-Z]\w+) +Code = "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = m[2]
		}
	}
	if len(found) < 20 {
		t.Fatalf("found only %v", found)
	}
	return found
}

// docs/protocol.md must list every code of a cause, and also the task states that are used as codes.
func TestProtocolListsTheReasons(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/protocol.md")
	must.Succeed(t, err)
	_, section, _ := strings.Cut(string(page), "<!-- why codes -->\n| `code` |")
	section, _, _ = strings.Cut(section, "\n\n")
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+`) \\|").FindAllStringSubmatch(section, -1) {
		listed = append(listed, strings.Split(strings.ReplaceAll(m[1], "`", ""), ", ")...)
	}
	want := slices.Collect(maps.Values(codeNames(t)))
	for _, state := range store.TaskStates() {
		if state != store.Pending && state != store.Dispatched {
			want = append(want, string(state))
		}
	}
	slices.Sort(listed)
	slices.Sort(want)
	if !slices.Equal(listed, want) {
		t.Errorf("the page lists %q, the program has %q", listed, want)
	}
}
