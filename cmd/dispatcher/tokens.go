package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

func newTokens() *cobra.Command {
	command := &cobra.Command{Use: "tokens", Short: "Make the first operator token"}
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	command.AddCommand(newTokensCreate())
	return command
}

// newTokensCreate writes into the ledger itself: whoever has its password may
// do everything anyway, and the first token can come from nowhere else.
func newTokensCreate() *cobra.Command {
	var name, role string
	var valid time.Duration
	var s *settings
	command := &cobra.Command{
		Use:   "create",
		Short: "Make an operator token in the Postgres database (DISPATCHER_POSTGRES_DSN) and print it; it is never shown again",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			roles := []string{"viewer", "operator", "admin", "verifier"}
			if name == "" || !slices.Contains(roles, role) || valid < 0 {
				return usageError{errors.New("--name is needed, and --role must be one of " + strings.Join(roles, ", "))}
			}
			return withLedger(cmd, s, func(cmd *cobra.Command, ledger *store.Store) error {
				return createToken(cmd, ledger, store.Token{Name: name, Role: role}, valid)
			})
		},
	}
	command.Flags().StringVar(&name, "name", "", "who acts with it: it stands in the log")
	command.Flags().StringVar(&role, "role", "admin", "viewer, operator, admin or verifier")
	command.Flags().DurationVar(&valid, "valid", 0, "how long it is valid, e.g. 720h; 0: until it is revoked")
	s = addSettings(command.Flags())
	return command
}

func createToken(cmd *cobra.Command, ledger *store.Store, t store.Token, valid time.Duration) error {
	if valid > 0 {
		now, _, err := ledger.Clock(cmd.Context())
		if err != nil {
			return err
		}
		end := now.Add(valid)
		t.ExpiresAt = &end
	}
	secret := dispatcher.NewToken()
	hash := dispatcher.HashToken(secret)
	if _, err := ledger.CreateToken(cmd.Context(), "command line", t, hash[:]); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
	return err
}
