package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestRemediesAreCommands checks that the commands that `tasks why` suggests cause no usage error: each command fails
// only because it finds no server.
func TestRemediesAreCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../dispatcher/decision/*.go")
	must.Succeed(t, err)
	suggested := regexp.MustCompile("dispatcher ((?:pools|batches|tasks|devices|profiles) [a-z]+[^\"`,;:]*)")
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		must.Succeed(t, err)
		for _, match := range suggested.FindAllStringSubmatch(string(text), -1) {
			found[match[1]] = true
		}
	}
	if len(found) < 10 {
		t.Fatalf("found only %v", found)
	}
	for line := range found {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := runProgram(t, nil, fillPlaceholders(line)...)
			if code != exitFailure || !strings.Contains(stderr, "start one with `dispatcher dev`") {
				t.Errorf("exit %d: %s", code, stderr)
			}
		})
	}
}

// fillPlaceholders replaces the placeholders of a suggestion with values. A suggestion that ends with a space
// gets a value at its end, because the program appends a name there.
func fillPlaceholders(line string) []string {
	if strings.HasSuffix(line, " ") {
		line += "%s"
	}
	values := map[string]string{
		"%d": "1", "%s": "1", "R": "why", "N": "7", "D": "1h", "T": "2099-01-01T00:00:00Z", "W": "0 1 * * * 4h", "@FILE": "[]", "BATCH": "1", "TASK": "1",
	}
	args := strings.Fields(line)
	for i, word := range args {
		if value, is := values[word]; is {
			args[i] = value
		}
	}
	return args
}
