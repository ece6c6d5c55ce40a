package main

import "github.com/spf13/pflag"

// limitsVar adds the flag of policies, which readJSON reads.
func limitsVar(flags *pflag.FlagSet, limits *string) {
	flags.StringVar(limits, "limits", "", "how often tasks may start: a JSON list of policies, or @FILE with one")
}
