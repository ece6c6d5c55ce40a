package web

import "time"

// Pass is a background pass of this replica.
type Pass struct {
	Name     string
	Every    time.Duration
	LastGood *time.Time // when it last ended without an error; nil: not yet
	Failed   bool       // the last run; the log says why
}
