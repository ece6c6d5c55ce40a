package servers

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Program is the dispatcher, or another program of the module, as a process. It has the exit codes, signals and memory of the program that is shipped.
// It is built once for all packages, into bin/tests, and built again when the code has changed. The zero value is
// ready to use.
type Program struct {
	Folder string // the folder of the program in the module; "" means cmd/dispatcher
	Race   bool   // build with the race detector, except in short tests; it changes the exit status after a race

	once sync.Once
	path string
	err  error
}

// Path returns the path of the program. The first call builds it.
func (p *Program) Path(tb testing.TB) string {
	tb.Helper()
	p.once.Do(func() { p.path, p.err = p.build() })
	if p.err != nil {
		tb.Fatal(p.err)
	}
	return p.path
}

func (p *Program) folder() string { return cmp.Or(p.Folder, "cmd/dispatcher") }

func (p *Program) build() (path string, err error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	dir := filepath.Join(filepath.Dir(strings.TrimSpace(string(out))), "bin", "tests")
	path, flags, cgo := filepath.Join(dir, filepath.Base(p.folder())), []string(nil), "0" // without cgo as in scripts/build
	// The flags are the same as for the tests (RACE in the Makefile), so nothing is compiled twice.
	if p.Race && !testing.Short() {
		path, cgo, flags = path+"-race", "1", []string{
			"-race", "-gcflags=all=-dwarf=false", "-gcflags=modernc.org/...=-dwarf=false -race=false",
			"-gcflags=github.com/yuin/gopher-lua/...=-dwarf=false -race=false",
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("a folder for the program: %w", err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("building the program: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { // other packages build the program, too
		return "", fmt.Errorf("building the program: %w", err)
	}
	// The Go toolchain does not rebuild a file that is up to date.
	build := exec.Command("go", slices.Concat([]string{"build", "-trimpath"}, flags, []string{"-o", path, "github.com/fleetslots/dispatcher/" + p.folder()})...)
	build.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return path, nil
}
