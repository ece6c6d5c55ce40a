package web

import "context"

// System is what the page of that name shows of this replica.
type System struct {
	Mode     string // dev or production
	Version  string
	Replica  string
	Checks   func(ctx context.Context) map[string]string // of the dependencies: ok, degraded or failed
	Settings []Setting                                   // without secrets
}

// Setting is one line of the configuration, for people.
type Setting struct{ Key, Value, Help string }
