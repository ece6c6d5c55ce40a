package app

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test

const referenceFile = "../../docs/configuration.md"

// TestReferenceIsTheSettings checks that the reference page is generated from the settings, so that
// they cannot differ.
func TestReferenceIsTheSettings(t *testing.T) {
	t.Parallel()
	want := settingsReference()
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil { //nolint:gosec // a page for everybody
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(referenceFile)
	if err != nil || string(got) != want {
		t.Errorf("%s is not what the settings say (make docs writes it): %v\n%s", referenceFile, err, want)
	}
}

func settingsReference() string {
	var b strings.Builder
	b.WriteString(`# Configuration

Written by ` + "`make docs`" + ` from the settings in the code; a test fails when it is stale.

Defaults, then a YAML file (` + "`serve --config FILE`" + `), then the environment, then flags. Empty is the same as not
given. A name that is not known is an error, so that a misspelt setting never silently keeps its default;
` + "`DISPATCHER_PORT*` and `DISPATCHER_SERVICE_*`" + ` are ignored because Kubernetes injects them, ` + "`DISPATCHER_URL` and\n`DISPATCHER_TOKEN`" + ` because they are the command line's.

The YAML file is one mapping of keys to text: the variable's name without ` + "`DISPATCHER_`" + `, in lower case. Durations have
units (` + "`300ms`, `10s`, `5m`" + `). A secret has no flag, because arguments are visible to every user of a machine; the
variable with ` + "`_FILE`" + ` behind it names a file that holds it.

| variable | YAML key | flag | default | values | |
| --- | --- | --- | --- | --- | --- |
`)
	for _, s := range Settings() {
		name := "`--" + s.Flag() + "`"
		if s.Secret {
			name = "secret"
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s | %s |\n", s.Env(), s.Key, name, codeMarked(s.Default), s.Range(), s.Help)
	}
	return b.String()
}

func codeMarked(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

func TestRangesAreSaidBriefly(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]Setting{
		"":              {},
		"on, off":       {Choices: []string{"on", "off"}},
		"0s to 1m30s":   {Max: 90 * time.Second},
		"10ms to 5m":    {Min: 10 * time.Millisecond, Max: 5 * time.Minute},
		"1m to 24h":     {Min: time.Minute, Max: 24 * time.Hour},
		"10m to 1h20m":  {Min: 10 * time.Minute, Max: 80 * time.Minute},
		"1s to 10h0m5s": {Min: time.Second, Max: 10*time.Hour + 5*time.Second},
	} {
		if got := s.Range(); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
