package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/windows"
)

// timeFlag is a flag for a time. Its value is a time, or a duration before now.
type timeFlag struct{ value time.Time }

// String returns the time in the format of the API. It is empty if the flag was not given.
func (m *timeFlag) String() string {
	if m.value.IsZero() {
		return ""
	}
	return m.value.UTC().Format(time.RFC3339Nano)
}

// Set parses text, a time in RFC 3339 or a duration before now (such as 90m or 2d), and stores it as the value of the flag.
func (m *timeFlag) Set(text string) error {
	at, err := time.Parse(time.RFC3339, text)
	if err == nil {
		m.value = at
		return nil
	}
	ago, err := model.ParseDuration(text)
	if err != nil {
		return errors.New("must be a duration before now (90m, 2h, 1d, 2w) or a time (2026-11-21T14:00:00Z)")
	}
	m.value = time.Now().Add(-time.Duration(ago))
	return nil
}

func (m *timeFlag) Type() string { return "time" }

// callersFlag is a flag for a maximum number of slots. A nil maxSlots means "all".
type callersFlag struct{ maxSlots *int }

// Set parses text, a number of slots or "all", and stores it as the value of the flag.
func (f *callersFlag) Set(text string) error {
	if f.maxSlots = nil; text == "all" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return errors.New("must be a number of slots, or all")
	}
	f.maxSlots = &n
	return nil
}

// String returns an empty text, so that the help shows no default for the flag.
func (f *callersFlag) String() string { return "" }

func (f *callersFlag) Type() string { return "number" }

// MarshalJSON returns the JSON of the API: the number of slots, or null for "all".
func (f callersFlag) MarshalJSON() ([]byte, error) { return json.Marshal(f.maxSlots) }

// MarshalYAML returns the value for a file of pools: the number of slots, or "all".
func (f callersFlag) MarshalYAML() (any, error) { //nolint:unparam // the interface of package yaml
	if f.maxSlots == nil {
		return "all", nil
	}
	return *f.maxSlots, nil
}

// UnmarshalYAML parses the value in a file of pools: a number of slots, or "all".
func (f *callersFlag) UnmarshalYAML(node *yaml.Node) error {
	if err := f.Set(node.Value); err != nil {
		return fmt.Errorf("callers: %w", err)
	}
	return nil
}

// windowsFlag collects windows. A value such as "0 1 * * * 4h Asia/Shanghai" contains five cron
// fields, a duration and a time zone. The time zone may be left out.
type windowsFlag []windows.Window

// String returns all windows as text, separated by commas.
func (w *windowsFlag) String() string {
	texts := make([]string, len(*w))
	for i, one := range *w {
		texts[i] = strings.TrimSpace(one.Cron + " " + one.Duration + " " + one.Timezone)
	}
	return strings.Join(texts, ", ")
}

func (w *windowsFlag) Type() string { return "window" }

// Set parses text as one window and appends the window to the value of the flag.
func (w *windowsFlag) Set(text string) error {
	window, err := windows.FromText(text)
	if err != nil {
		return err
	}
	if _, err := windows.Parse([]windows.Window{window}); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "windows[0]."))
	}
	*w = append(*w, window)
	return nil
}
