package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

type poolFile struct {
	Pools []poolSettings `yaml:"pools"`
}

// poolSettings is a pool in a file. Its JSON is the body of a request. A nil field is not in the file.
type poolSettings struct {
	Name         string              `json:"-" yaml:"name"`
	Capacity     *int                `json:"capacity,omitempty" yaml:"capacity"`
	Lease        *milliseconds       `json:"lease_ms,omitempty" yaml:"lease"`
	Paused       *bool               `json:"paused,omitempty" yaml:"paused"`
	Callers      *callersFlag        `json:"callers,omitempty" yaml:"callers"`
	LongestLease *milliseconds       `json:"longest_lease_ms,omitempty" yaml:"longest_lease"`
	LongestSleep *milliseconds       `json:"longest_sleep_ms,omitempty" yaml:"longest_sleep"`
	Windows      *[]operators.Window `json:"windows,omitempty" yaml:"windows,flow"`
	Limits       *[]operators.Policy `json:"limits,omitempty" yaml:"limits,flow"`
}

// milliseconds is a duration: in a file a text such as 5m, in the API a number of ms.
type milliseconds int64

// MarshalYAML returns the duration as text.
func (m milliseconds) MarshalYAML() (any, error) { //nolint:unparam // the interface of package yaml
	return terminal.FormatDuration(time.Duration(m) * time.Millisecond), nil
}

// UnmarshalYAML parses a duration such as 5m.
func (m *milliseconds) UnmarshalYAML(node *yaml.Node) error {
	d, err := time.ParseDuration(node.Value)
	if err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q must be a duration such as 300s or 5m", node.Line, node.Value)}}
	}
	*m = milliseconds(d.Milliseconds())
	return nil
}

// readPoolFile reads the file of pools at path (stdin if path is "-"). Only the server validates the values.
func readPoolFile(path string, stdin io.Reader) ([]poolSettings, error) {
	text := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, usageError{fmt.Errorf("--file: %w", err)}
		}
		defer func() { _ = file.Close() }() // an error of Close has no effect, because the file was only read
		text = file
	}
	pools, err := parsePoolFile(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pools, nil
}

// parsePoolFile parses a file of pools. It refuses a pool without a name, and a name that appears twice.
func parsePoolFile(text io.Reader) ([]poolSettings, error) {
	var file poolFile
	d := yaml.NewDecoder(text)
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	if len(file.Pools) == 0 {
		return nil, errors.New("no pools; a list under `pools:` is required")
	}
	names := map[string]bool{}
	for _, pool := range file.Pools {
		switch {
		case pool.Name == "":
			return nil, errors.New("a pool has no name; name: required")
		case names[pool.Name]:
			return nil, fmt.Errorf("pool %s: appears twice", pool.Name)
		}
		names[pool.Name] = true
	}
	return file.Pools, nil
}

// exportPoolFile writes a file of the pools that match query. If this file is applied to the same pools, nothing changes.
func exportPoolFile(s *session, query url.Values) error {
	filter := operators.PoolFilter{Name: query.Get("name"), Sort: query.Get("sort"), OnlyTrouble: query.Get("only_trouble") == "true"}
	var file poolFile
	for p, err := range s.Pools.List(s.cmd.Context(), filter) {
		if err != nil {
			return err
		}
		file.Pools = append(file.Pools, poolSettings{
			Name: p.Name, Capacity: &p.Capacity, Lease: new(milliseconds(p.LeaseMS)), Paused: &p.Paused, Callers: &callersFlag{p.Callers},
			LongestLease: new(milliseconds(p.LongestLeaseMS)), LongestSleep: new(milliseconds(p.LongestSleepMS)), Windows: &p.Windows, Limits: &p.Limits,
		})
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	_, err = s.console.out.Write(text)
	return err
}
