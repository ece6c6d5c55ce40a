package main

import (
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// The flag --after-restore without a value means that the ledger was restored. A value is the minimum time without grants.
func TestAfterRestoreTakesADuration(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]restoreFlag{
		"":                      {},
		"--after-restore":       {isRestored: true, minStandstill: 5 * time.Minute},
		"--after-restore=true":  {isRestored: true},
		"--after-restore=false": {},
		"--after-restore=36h":   {isRestored: true, minStandstill: 36 * time.Hour},
	} {
		if got, err := parseRestore(arg); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", arg, got, err, want)
		}
	}
	for _, arg := range []string{"--after-restore=soon", "--after-restore=-1h", "--after-restore=0s"} {
		if got, err := parseRestore(arg); err == nil {
			t.Errorf("%q: %+v, want it refused", arg, got)
		}
	}
}

func parseRestore(arg string) (f restoreFlag, err error) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.addTo(flags)
	if arg != "" {
		err = flags.Parse([]string{arg})
	}
	return f, err
}
