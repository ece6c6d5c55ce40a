package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// shellStep is a command in a document and its output.
type shellStep struct{ command, output string }

// tutorialSection is a section of a document with commands that can be run.
type tutorialSection struct {
	page, section string
	minBlocks     int // minimum number of blocks with commands
}

// TestTutorials runs the commands of each section in one shell, with a dispatcher dev that the
// commands find themselves. With -update it writes their output into the documents.
func TestTutorials(t *testing.T) {
	t.Parallel()
	for _, one := range []tutorialSection{{"../../docs/tutorial.md", "From an empty folder", 10}, {"../../docs/callers.md", "From nothing", 5}, {"../../docs/limits.md", "From the shell", 5}, {"../../docs/limits.md", "Limits as a service", 4}} {
		t.Run(one.section, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && one.section == "From an empty folder" {
				t.Skip("long: it queues 100,000 tasks; make test-long runs it")
			}
			one.check(t)
		})
	}
}

func (o tutorialSection) check(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(o.page)
	must.Succeed(t, err)
	blocks := o.consoleBlocks(string(text))
	if len(blocks) < o.minBlocks {
		t.Fatalf("%d blocks with commands in %s", len(blocks), o.page)
	}
	var steps []shellStep
	for _, block := range blocks {
		steps = append(steps, readSteps(block)...)
	}
	printed := runSteps(t, steps)
	if *update {
		o.writeOutputs(t, printed)
		return
	}
	for i, s := range steps {
		if diff := cmp.Diff(maskVariableParts(s.output), maskVariableParts(printed[i].output)); diff != "" {
			t.Errorf("$ %s\n(-the document +what it prints)\n%s", s.command, diff)
		}
	}
}

func (o tutorialSection) consoleBlocks(text string) []string {
	_, text, _ = strings.Cut(text, "\n## "+o.section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var blocks []string
	for _, found := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, found[1])
	}
	return blocks
}

func readSteps(block string) (steps []shellStep) {
	for line := range strings.Lines(block) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, shellStep{command: strings.TrimSpace(command)})
		} else if len(steps) > 0 {
			steps[len(steps)-1].output += line
		}
	}
	return steps
}

// runSteps runs all steps in one shell. It returns the steps with their output.
func runSteps(t *testing.T, steps []shellStep) []shellStep {
	t.Helper()
	dir := t.TempDir()
	home := "HOME=" + dir
	args := []string{"dev", "--listen", "127.0.0.1:0", "--mqtt-listen", "127.0.0.1:0", "--data", filepath.Join(dir, devData)}
	if !*update {
		args = append(args, "--report-period", "1h") // no device is overdue on a busy machine
	}
	d := startProgram(t, []string{home}, args...)
	url := d.waitForOutput(t, `HTTP\s+(http://\S+)`)
	var script strings.Builder
	for _, s := range steps {
		command := strings.ReplaceAll(s.command, "http://127.0.0.1:8080", url)
		fmt.Fprintf(&script, "printf '\\036'\n{ %s\n} 2>&1\n", command)
	}
	shell := exec.CommandContext(t.Context(), "bash")
	shell.Dir, shell.Stdin = dir, strings.NewReader(script.String())
	shell.Env = []string{home, "PATH=" + filepath.Dir(programPath) + ":" + os.Getenv("PATH")}
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	if err := shell.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	parts := strings.Split(out.String(), "\036")[1:]
	if len(parts) != len(steps) {
		t.Fatalf("%d commands printed %d times:\n%s", len(steps), len(parts), out.String())
	}
	printed := make([]shellStep, len(steps))
	for i, s := range steps {
		printed[i] = shellStep{s.command, parts[i]}
	}
	return printed
}

// maskVariableParts replaces the parts of an output that differ from run to run: times, remaining durations,
// secrets, and the spaces of columns whose width depends on them.
func maskVariableParts(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z`, "TIME"},
		{`(_ms"?:) ?\d+`, "$1 N"},
		{`(?m)^(rate_per_minute|eta) .*\n`, ""},                      // updated with a delay of some seconds
		{`(?m)^ +(position in the queue|estimated start): .*\n`, ""}, // depends on other tasks
		{`(?m)^(per-[a-z]+ .*) [0-9hms]*[hms]$`, "$1 LEFT"},          // remaining time of a policy
		{`(allowed in|Retry-After:|;t=) ?\w+`, "$1 LEFT"},
		{`(?m)^\d+ +TIME`, "ID TIME"}, // id of an event
		{`[A-Za-z0-9_-]{43}`, "SECRET"},
		{` +`, " "},
		{`(?m) +$`, ""},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

// writeOutputs replaces the outputs in the document with the printed outputs.
func (o tutorialSection) writeOutputs(t *testing.T, printed []shellStep) {
	t.Helper()
	content, err := os.ReadFile(o.page) // read again, because another section may have been written
	must.Succeed(t, err)
	text := string(content)
	for _, block := range o.consoleBlocks(text) {
		var fresh strings.Builder
		for range readSteps(block) {
			fmt.Fprintf(&fresh, "$ %s\n%s", printed[0].command, printed[0].output)
			printed = printed[1:]
		}
		text = strings.Replace(text, "```console\n"+block+"```", "```console\n"+fresh.String()+"```", 1)
	}
	must.Succeed(t, os.WriteFile(o.page, []byte(text), 0o600))
}
