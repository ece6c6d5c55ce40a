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

// TestReferenceIsTheSettings checks that the reference page of the settings is the page that is generated from the
// program, so that both cannot differ.
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

This page lists all settings of ` + "`dispatcher serve`" + ` for operators. ` + "`make docs`" + ` writes it from the code.

Contents: [sources of the settings](#sources-of-the-settings), [settings](#settings).

## Sources of the settings

Each setting has an environment variable (` + "`DISPATCHER_REAP_INTERVAL`" + `), a YAML key (` + "`reap_interval`" + `) and, unless it is a secret, a flag (` + "`--reap-interval`" + `).
A flag has precedence over the environment, the environment over a YAML file (` + "`serve --config FILE`" + `), and the file over the default.
The YAML file is one mapping of keys to text.
The value of a secret may be in a file: the variable with the suffix ` + "`_FILE`" + ` has the path of this file.
Durations have units (` + "`300ms`, `10s`, `5m`" + `).
An empty value counts as not set.
An unknown name is an error, except these variables, which are ignored:

| variable | used by |
| --- | --- |
| ` + "`DISPATCHER_PORT*`, `DISPATCHER_SERVICE_*`" + ` | Kubernetes |
| ` + "`DISPATCHER_URL`, `DISPATCHER_TOKEN`, `DISPATCHER_TOKEN_FILE`" + ` | the command line |
| ` + "`DISPATCHER_POOL`, `DISPATCHER_SLOT`, `DISPATCHER_LEASE`" + ` | the command of ` + "`dispatcher run`" + ` |

## Settings

| variable | default | values | meaning |
| --- | --- | --- | --- |
`)
	for _, s := range Settings() {
		values := s.Range()
		if s.Secret {
			values = "secret"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Env(), codeMarked(s.Default), values, s.Help)
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
