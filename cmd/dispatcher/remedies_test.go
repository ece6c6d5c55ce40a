package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRemediesAreCommands: what `tasks why` suggests is no usage error: it gets
// as far as to look for a server.
func TestRemediesAreCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../dispatcher/decision/*.go")
	if err != nil {
		t.Fatal(err)
	}
	suggested := regexp.MustCompile("dispatcher ((?:pools|batches|tasks|devices|profiles) [a-z]+[^\"`,;:]*)")
	found := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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
			code, _, stderr := execute(t, nil, filled(line)...)
			if code != exitFailure || !strings.Contains(stderr, "start one with `dispatcher dev`") {
				t.Errorf("exit %d: %s", code, stderr)
			}
		})
	}
}

// filled puts values in the placeholders of a suggestion. One that ends where the
// program adds a name gets one.
func filled(line string) []string {
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
