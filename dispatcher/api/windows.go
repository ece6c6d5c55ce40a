package api

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/store"
)

type windowBody struct {
	Cron     string `json:"cron" doc:"Minute, hour, day of month, month, day of week"`
	Duration string `json:"duration" doc:"Open for that long after each firing: 4h, 90m; 1m to 168h"`
	Timezone string `json:"timezone,omitempty" doc:"IANA name; default UTC"`
}

// readWindows checks what operators wrote.
func readWindows(list []windowBody) ([]store.Window, error) {
	read := make([]store.Window, len(list))
	for i, w := range list {
		read[i] = store.Window{Cron: w.Cron, Duration: w.Duration, Timezone: cmp.Or(w.Timezone, "UTC")}
	}
	if _, err := windows.Parse(read); err != nil {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, err.Error())
	}
	if len(read) == 0 {
		return nil, nil
	}
	return read, nil
}

func showWindows(list []store.Window) []windowBody {
	shown := make([]windowBody, len(list))
	for i, w := range list {
		shown[i] = windowBody(w)
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
func stampSet(t time.Time) *timestamp {
	if t.IsZero() {
		return nil
	}
	return &timestamp{t}
}
