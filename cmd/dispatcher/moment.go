package main

import (
	"errors"
	"time"

	"github.com/prometheus/common/model"
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

// Type returns "time", the name of the value in the help of the flag.
func (m *timeFlag) Type() string { return "time" }
