package main

import (
	"errors"
	"time"

	"github.com/prometheus/common/model"
)

// moment is a flag for a time. Its value is a time, or a duration before now.
type moment struct{ at time.Time }

// String returns the time in the format of the API. It is empty if the flag was not given.
func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.UTC().Format(time.RFC3339Nano)
}

// Set parses a time or a duration.
func (m *moment) Set(text string) error {
	at, err := time.Parse(time.RFC3339, text)
	if err == nil {
		m.at = at
		return nil
	}
	ago, err := model.ParseDuration(text)
	if err != nil {
		return errors.New("neither a duration ago (90m, 2h, 1d, 2w) nor a time (2026-11-21T14:00:00Z)")
	}
	m.at = time.Now().Add(-time.Duration(ago))
	return nil
}

// Type returns the word that the help shows for a value.
func (m *moment) Type() string { return "time" }
