package testservers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// Program is the dispatcher as it is shipped, built once for all the tests of a
// package: its exit codes, signals and memory are those of a process. The zero
// value is ready; TestMain closes it, as a SharedPostgres.
type Program struct {
	Flags []string // of go build, such as -race

	mu   sync.Mutex
	path string
	err  error
}

// Path is where the program lies. The first call builds it.
func (p *Program) Path(tb testing.TB) string {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path == "" && p.err == nil {
		p.path, p.err = p.build()
	}
	if p.err != nil {
		tb.Fatal(p.err)
	}
	return p.path
}

func (p *Program) build() (string, error) {
	dir, err := os.MkdirTemp("", "dispatcher-program")
	if err != nil {
		return "", fmt.Errorf("a folder for the program: %w", err)
	}
	path := filepath.Join(dir, "dispatcher")
	build := exec.Command("go", slices.Concat([]string{"build", "-o", path}, p.Flags, []string{"github.com/fleetslots/dispatcher/cmd/dispatcher"})...)
	if out, err := build.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return path, nil
}

// Close removes the program, if it was built.
func (p *Program) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path != "" {
		_ = os.RemoveAll(filepath.Dir(p.path))
		p.path = ""
	}
}
