package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

var man = flag.String("man", "", "write the manual pages to this folder") //nolint:gochecknoglobals // a flag of the test

// TestManPages writes a manual page for each command, with the time of SOURCE_DATE_EPOCH. Each page has the name of its
// command, and a summary.
func TestManPages(t *testing.T) {
	t.Parallel()
	dir := *man
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // packages contain the folder
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := rootCommand(&out, &out, func() {})
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Source: "dispatcher", Manual: "dispatcher"}
	must.Succeed(t, doc.GenManTree(root, header, dir))
	expectPages(t, root, dir)
}

// expectPages checks that dir has a manual page of the command and of each command below it.
func expectPages(t *testing.T, command *cobra.Command, dir string) {
	t.Helper()
	page := strings.ReplaceAll(command.CommandPath(), " ", "-")
	text, err := os.ReadFile(filepath.Join(dir, page+".1"))
	if err != nil || !strings.Contains(strings.ReplaceAll(string(text), `\`, ""), command.Short) {
		t.Errorf("the page of %s: %v", command.CommandPath(), err)
	}
	for _, below := range command.Commands() {
		if below.IsAvailableCommand() && !below.IsAdditionalHelpTopicCommand() {
			expectPages(t, below, dir)
		}
	}
}
