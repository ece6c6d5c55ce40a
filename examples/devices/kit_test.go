// Package devices_test runs each device program of this folder against the dispatcher, through a network that loses,
// repeats and delays messages, and kills the programs at each step.
package devices_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// Transports of the device protocol.
const (
	overHTTP = "http"
	overMQTT = "mqtt"
)

// deviceProgram is a row of the table of programs. In build and command, {dir} is a copy of the program's folder.
type deviceProgram struct {
	name      string
	folder    string            // empty: its name
	source    string            // the file with task()
	others    []string          // its other source files, if it shares the folder; nil: all files of the folder
	maxLines  int               // of all its source files
	build     []string          // nil: there is nothing to build
	command   []string          // the command line without the options
	transport string            // overHTTP or overMQTT
	needs     map[string]string // by Debian package: a program in PATH or a file that shows that it is installed
}

// programs returns the table of programs.
func programs() []deviceProgram {
	return []deviceProgram{
		{
			name: "python-http", source: "device.py", maxLines: 250, transport: overHTTP,
			command: []string{"/usr/bin/python3", "{dir}/device.py"},
			needs:   map[string]string{"python3": "/usr/bin/python3"},
		},
		{
			name: "go-http", source: "task.go", maxLines: 400, transport: overHTTP,
			build:   []string{"env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", "{dir}/device", "./go-http"},
			command: []string{"{dir}/device"},
		},
		{
			name: "shell-http", source: "device.sh", maxLines: 250, transport: overHTTP,
			command: []string{"sh", "{dir}/device.sh"},
			needs:   map[string]string{"jq": "jq", "curl": "curl"},
		},
		{
			name: "python-mqtt", source: "device.py", maxLines: 250, transport: overMQTT,
			command: []string{"/usr/bin/python3", "{dir}/device.py"},
			needs:   map[string]string{"python3-paho-mqtt": "/usr/lib/python3/dist-packages/paho/mqtt/client.py"},
		},
		{
			name: "c-http", folder: "c", source: "task.c", others: []string{"device.c", "device.h", "journal.c", "http.c"}, maxLines: 500,
			transport: overHTTP, build: makeSanitized("device-http"), command: []string{"{dir}/device-http"},
			needs: map[string]string{"gcc": "gcc", "make": "make", "libcjson-dev": "/usr/include/cjson/cJSON.h"},
		},
		{
			name: "c-mqtt", folder: "c", source: "task.c", others: []string{"device.c", "device.h", "journal.c", "mqtt.c"}, maxLines: 510,
			transport: overMQTT, build: makeSanitized("device-mqtt"), command: []string{"{dir}/device-mqtt"},
			needs: map[string]string{
				"gcc": "gcc", "make": "make", "libcjson-dev": "/usr/include/cjson/cJSON.h", "libmosquitto-dev": "/usr/include/mosquitto.h",
			},
		},
	}
}

// makeSanitized returns the command that builds a C program with a sanitizer: the program ends at a wrong access to memory.
func makeSanitized(program string) []string {
	return []string{"make", "-C", "{dir}", program, "EXTRA=-fsanitize=address,undefined -fno-sanitize-recover"}
}

// seeds returns the seeds of a test: one for each change, many in the long tests.
func seeds() []uint64 {
	if testing.Short() {
		return []uint64{1}
	}
	return []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
}

// TestKit checks that each program keeps the rules of the protocol while the network is bad and the program is killed:
// never two devices inside an external system with one slot, no result is lost, and none is counted twice.
//
// All programs run at the same time, also on a machine with few cores: they wait most of the time.
func TestKit(t *testing.T) {
	t.Parallel()
	server := startServer(t, t.TempDir())
	var running sync.WaitGroup
	for _, program := range programs() {
		running.Go(func() {
			t.Run(program.name, func(t *testing.T) {
				command := program.install(t)
				t.Run("certificate", func(t *testing.T) { checkCertificate(t, program, command, server.fleetToken) })
				for _, seed := range seeds() {
					t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { newTrial(t, server, program, command, seed).run() })
				}
			})
		})
	}
	running.Wait()
}

// install builds the program in a copy of its folder, and returns its command line without the options.
func (p deviceProgram) install(t *testing.T) []string {
	t.Helper()
	for name, file := range p.needs {
		requireInstalled(t, name, file)
	}
	dir := t.TempDir()
	must.Succeed(t, os.CopyFS(dir, os.DirFS(p.dir())))
	if build := inDir(p.build, dir); build != nil {
		if out, err := exec.Command(build[0], build[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", build, err, out)
		}
	}
	return inDir(p.command, dir)
}

func (p deviceProgram) dir() string { return cmp.Or(p.folder, p.name) }

func inDir(words []string, dir string) []string {
	filled := slices.Clone(words)
	for i, word := range filled {
		filled[i] = strings.ReplaceAll(word, "{dir}", dir)
	}
	return filled
}

// start returns a function that makes the command of a device. command is the command line without the options.
func (p deviceProgram) start(command []string, url, device, tokenFile, journal string, more ...string) func() *exec.Cmd {
	args := slices.Concat(command[1:], []string{
		"--server", url, "--device", device, "--token-file", tokenFile, "--journal", journal, "--period", period,
	}, more)
	return func() *exec.Cmd { return exec.Command(command[0], args...) }
}

// requireInstalled skips the test if a Debian package is not installed, and fails it under CI. The package counts as
// installed if sign exists, which is the name of a program or the path of a file.
func requireInstalled(t *testing.T, name, sign string) {
	t.Helper()
	if !filepath.IsAbs(sign) {
		servers.RequireProgram(t, sign)
		return
	}
	if _, err := os.Stat(sign); err == nil {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed; tests need it (make deps)", name)
	}
	t.Skipf("%s is not installed (make deps)", name)
}

// TestProgramsAreShort checks that a program stays short enough to be read before it is used.
func TestProgramsAreShort(t *testing.T) {
	t.Parallel()
	for _, p := range programs() {
		lines := 0
		for _, file := range p.sources() {
			text, err := os.ReadFile(file)
			must.Succeed(t, err)
			lines += strings.Count(string(text), "\n")
		}
		if lines == 0 || lines > p.maxLines {
			t.Errorf("%s has %d lines, want 1 to %d", p.name, lines, p.maxLines)
		}
	}
}

// sources returns the paths of the source files of the program.
func (p deviceProgram) sources() []string {
	patterns := []string{"*.py", "*.sh", "*.go", "*.c", "*.h"}
	if p.others != nil {
		patterns = append([]string{p.source}, p.others...)
	}
	var files []string
	for _, pattern := range patterns {
		found, _ := filepath.Glob(filepath.Join(p.dir(), pattern))
		files = append(files, found...)
	}
	return files
}
