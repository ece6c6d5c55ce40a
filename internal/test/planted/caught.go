package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// caughtFile is the path, relative to the root of the module, of a file with one line for each mistake that a run has
// caught: the name of the mistake, a tab, and the test that last caught it. This test runs first in the next run, so
// that a run over all mistakes takes minutes instead of an hour. If a mistake is renamed, the old line stays.
const caughtFile = "internal/test/planted/caught.txt"

func readCaught(path string) (testByMistake map[string]string, err error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	testByMistake = map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, test, found := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); found {
			testByMistake[name] = test
		}
	}
	return testByMistake, nil
}

func writeCaught(path string, testByMistake map[string]string) error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(testByMistake)) {
		text.WriteString(name + "\t" + testByMistake[name] + "\n")
	}
	return os.WriteFile(path, []byte(text.String()), 0o600)
}
