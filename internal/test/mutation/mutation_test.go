package mutation_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

// moduleTests are the tests of the module. If a mistake is made, TestBeside waits until its context ends. The run
// must end anyway, because TestTwice fails.
const moduleTests = `package a

import "testing"

func TestTwice(t *testing.T) {
	t.Parallel()
	if Twice(2) != 4 {
		t.Fail()
	}
}

func TestBeside(t *testing.T) {
	t.Parallel()
	if Twice(2) != 4 {
		<-t.Context().Done()
	}
}
`

// createModule creates a repository with one package and its tests.
func createModule(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":      "module example.org/m\n\ngo 1.26\n",
		"a/a.go":      "package a\n\nfunc Twice(n int) int { return 2 * n }\n\nfunc Unused() int { return 1 }\n",
		"a/a_test.go": moduleTests,
		".gitignore":  "/bin/\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git := exec.CommandContext(t.Context(), "git", "init", "-q")
	git.Dir = root
	if out, err := git.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return root
}

func TestRunReportsWhatTheTestsMadeOfEachMistake(t *testing.T) {
	t.Parallel()
	root := createModule(t)
	source, err := os.ReadFile(filepath.Join(root, "a/a.go"))
	if err != nil {
		t.Fatal(err)
	}
	replace := func(name, old, text string) mutation.Mistake {
		at := strings.Index(string(source), old)
		return mutation.Mistake{Name: name, Packages: []string{"a"}, Edit: mutation.Edit{File: "a/a.go", Start: at, End: at + len(old), New: text}}
	}
	var out strings.Builder
	report, err := mutation.Run(t.Context(), &out, root, 1, []mutation.Mistake{
		replace("three times", "2 * n", "3 * n"),
		replace("unused", "return 1", "return 2"),
		replace("no such name", "2 * n", "m"),
		replace("hides nothing of the one before", "return 1", "return 3"),
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	want := mutation.Report{
		Caught: 1, Survived: 2, Unbuildable: 1, Survivors: []string{"unused", "hides nothing of the one before"},
		CaughtBy: map[string]string{"three times": "example.org/m/a TestTwice"},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Error(diff)
	}
	if got := out.String(); !strings.Contains(got, "1/4 caught: three times\n\tby example.org/m/a TestTwice") {
		t.Errorf("the report does not name the test:\n%s", got)
	}
}
