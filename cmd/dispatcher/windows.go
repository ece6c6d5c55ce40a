package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/windows"
)

// windowsFlag collects windows: "0 1 * * * 4h Asia/Shanghai" is five fields of
// cron, a duration and a time zone, which may be left out.
type windowsFlag []windows.Window

const cronFields = 5

func (w *windowsFlag) add(flags *pflag.FlagSet) {
	flags.Var(w, "window", `when tasks may start: "0 1 * * * 4h Asia/Shanghai" is cron, duration, time zone (UTC if left out); may be repeated`)
}

// String shows them.
func (w *windowsFlag) String() string {
	texts := make([]string, len(*w))
	for i, one := range *w {
		texts[i] = strings.TrimSpace(one.Cron + " " + one.Duration + " " + one.Timezone)
	}
	return strings.Join(texts, ", ")
}

// Type names it in the help.
func (w *windowsFlag) Type() string { return "window" }

// Set adds one.
func (w *windowsFlag) Set(text string) error {
	fields := strings.Fields(text)
	if len(fields) < cronFields+1 || len(fields) > cronFields+2 {
		return fmt.Errorf(`five fields of cron, a duration and perhaps a time zone, as in "0 1 * * * 4h Asia/Shanghai"`)
	}
	one := windows.Window{Cron: strings.Join(fields[:cronFields], " "), Duration: fields[cronFields], Timezone: "UTC"}
	if len(fields) > cronFields+1 {
		one.Timezone = fields[cronFields+1]
	}
	if _, err := windows.Parse([]windows.Window{one}); err != nil {
		return fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "windows[0]."))
	}
	*w = append(*w, one)
	return nil
}
