package api

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// readWindows checks what operators wrote.
func readWindows(list []operators.Window) ([]store.Window, error) {
	read := make([]store.Window, len(list))
	for i, w := range list {
		read[i] = store.Window{Cron: w.Cron, Duration: w.Duration, Timezone: cmp.Or(w.Timezone, "UTC")}
	}
	if _, err := windows.Parse(read); err != nil {
		return nil, invalid("%v", err)
	}
	if len(read) == 0 {
		return nil, nil
	}
	return read, nil
}

func showWindows(list []store.Window) []operators.Window {
	shown := make([]operators.Window, len(list))
	for i, w := range list {
		shown[i] = operators.Window(w)
	}
	return shown
}

// neverStarts says which rules of a batch stand in one another's way.
func neverStarts(err error) error {
	if !errors.Is(err, store.ErrNeverStarts) {
		return err
	}
	return problem(http.StatusUnprocessableEntity, codeInvalidField,
		"windows, lease_ms: with finish_inside nothing would ever start, for the windows of the batch and of its pool are never open together for longer than its lease")
}

// stampSet is a time that may be none.
func stampSet(t time.Time) *operators.Time {
	if t.IsZero() {
		return nil
	}
	return &operators.Time{Time: t}
}
