package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/operators"
)

// Limits of a pool in the protocol.
const (
	maxCapacity = 10_000
	maxLease    = 24 * time.Hour
)

// poolSpec is what a file says of a pool.
type poolSpec struct {
	name   string
	line   int
	fields map[string]any // by their names in the API
}

// readPools checks a file whole. Its errors name the line and the pool.
func readPools(path string, stdin io.Reader) ([]poolSpec, error) {
	text, err := readFile(path, stdin)
	if err != nil {
		return nil, usageError{fmt.Errorf("--file: %w", err)}
	}
	var file struct {
		Pools []yaml.Node `yaml:"pools"`
	}
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document", path)
	}
	if len(file.Pools) == 0 {
		return nil, fmt.Errorf("%s: no pools: a list under `pools:` is expected", path)
	}
	specs, seen := make([]poolSpec, len(file.Pools)), map[string]int{}
	var wrong []error
	for i := range file.Pools {
		spec, err := readPool(&file.Pools[i])
		if at := seen[spec.name]; err == nil && at > 0 {
			err = fmt.Errorf("line %d: pool %s: it is in line %d already", spec.line, spec.name, at)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
		}
		specs[i], seen[spec.name] = spec, spec.line
	}
	return specs, errors.Join(wrong...)
}

// readFile reads a file, or standard input for "-".
func readFile(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}

// poolKeys are what a file may say of a pool.
func poolKeys() map[string]func(*poolSpec, *yaml.Node) error {
	return map[string]func(*poolSpec, *yaml.Node) error{
		"name": func(*poolSpec, *yaml.Node) error { return nil }, // read before
		"capacity": func(p *poolSpec, n *yaml.Node) error {
			var capacity *int // null is none
			if err := n.Decode(&capacity); err != nil || capacity == nil || *capacity < 0 || *capacity > maxCapacity {
				return fmt.Errorf("a number from 0 to %d", maxCapacity)
			}
			p.fields["capacity"] = *capacity
			return nil
		},
		"lease": func(p *poolSpec, n *yaml.Node) error {
			lease, err := time.ParseDuration(n.Value)
			if err != nil || lease < time.Millisecond || lease > maxLease {
				return fmt.Errorf("a duration such as 300s or 5m, at most %s", maxLease)
			}
			p.fields["lease_ms"] = lease.Milliseconds()
			return nil
		},
		"paused": func(p *poolSpec, n *yaml.Node) error {
			var paused bool
			if err := n.Decode(&paused); err != nil {
				return errors.New("true or false")
			}
			p.fields["paused"] = paused
			return nil
		},
		"windows": readWindows,
		"limits":  readLimits,
	}
}

func readPool(n *yaml.Node) (poolSpec, error) {
	p := poolSpec{line: n.Line, fields: map[string]any{}}
	if n.Kind != yaml.MappingNode {
		return p, fmt.Errorf("line %d: a pool is a mapping with a name", n.Line)
	}
	for i := 0; i < len(n.Content); i += 2 {
		if n.Content[i].Value == "name" {
			p.name = n.Content[i+1].Value
		}
	}
	if err := devices.ParsePool(p.name); err != nil {
		return p, fmt.Errorf("line %d: pool %q: %w", p.line, p.name, err)
	}
	keys, seen := poolKeys(), map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := keys[key.Value]
		err := errors.New("no such key: there are capacity, lease, limits, name, paused, windows")
		if read != nil && seen[key.Value] {
			err = errors.New("it is there twice")
		} else if read != nil {
			err = read(&p, value)
		}
		if err != nil {
			return p, fmt.Errorf("line %d: pool %s: %s: %w", key.Line, p.name, key.Value, err)
		}
		seen[key.Value] = true
	}
	return p, nil
}

func readWindows(p *poolSpec, n *yaml.Node) error {
	list := []windows.Window{}
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		return errors.New("a list of cron, duration and timezone")
	}
	for _, item := range n.Content {
		var w windows.Window
		for i := 0; i+1 < len(item.Content); i += 2 {
			if key := item.Content[i]; !slices.Contains([]string{"cron", "duration", "timezone"}, key.Value) {
				return fmt.Errorf("line %d: %s: no such key: there are cron, duration, timezone", key.Line, key.Value)
			}
		}
		if err := item.Decode(&w); err != nil {
			return fmt.Errorf("line %d: cron, duration and timezone", item.Line)
		}
		if w.Timezone == "" {
			w.Timezone = "UTC" // as the server shows it
		}
		list = append(list, w)
	}
	if _, err := windows.Parse(list); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "windows"))
	}
	p.fields["windows"] = list
	return nil
}

// poolEntry is a pool in a file.
type poolEntry struct {
	Name     string             `yaml:"name"`
	Capacity int                `yaml:"capacity"`
	Lease    string             `yaml:"lease"`
	Paused   bool               `yaml:"paused"`
	Windows  []operators.Window `yaml:"windows,flow"`
	Limits   *yaml.Node         `yaml:"limits"`
}

// exportPools writes a file that applies to the same.
func (s *session) exportPools() error {
	var file struct {
		Pools []poolEntry `yaml:"pools"`
	}
	for p, err := range s.Pools.List(s.cmd.Context()) {
		if err != nil {
			return err
		}
		lease := terminal.Duration(time.Duration(p.LeaseMS) * time.Millisecond)
		policies, err := limitsNode(p.Limits)
		if err != nil {
			return err
		}
		file.Pools = append(file.Pools, poolEntry{p.Name, p.Capacity, lease, p.Paused, p.Windows, policies})
	}
	text, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	_, err = s.out.Write(text)
	return err
}
