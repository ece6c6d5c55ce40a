package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/store"
)

func newMigrate() *cobra.Command {
	var s *settings
	with := func(do func(*cobra.Command, *store.Store) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error { return withLedger(cmd, s, do) }
	}
	command := &cobra.Command{Use: "migrate", Short: "Change or show the schema of the Postgres database (DISPATCHER_POSTGRES_DSN)"}
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	s = addSettings(command.PersistentFlags())
	command.AddCommand(
		&cobra.Command{Use: "up", Short: "Apply every migration that is missing", Args: cobra.NoArgs, RunE: with(migrateUp)},
		&cobra.Command{Use: "down", Short: "Take the newest migration back, with its data", Args: cobra.NoArgs, RunE: with(migrateDown)},
		&cobra.Command{Use: "status", Short: "List the migrations", Args: cobra.NoArgs, RunE: with(migrateStatus)},
	)
	return command
}

// withLedger opens the ledger of the configuration for one command.
func withLedger(cmd *cobra.Command, s *settings, do func(*cobra.Command, *store.Store) error) (err error) {
	config, err := s.load(cmd.Flags())
	if err != nil {
		return usageError{err}
	}
	if config.PostgresDSN == "" {
		return usageError{errors.New("postgres_dsn is needed")}
	}
	ledger, err := store.OpenPostgres(cmd.Context(), config.PostgresDSN, store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	return do(cmd, ledger)
}

func migrateUp(cmd *cobra.Command, ledger *store.Store) error {
	applied, err := ledger.Migrate(cmd.Context())
	_, printErr := fmt.Fprintln(cmd.OutOrStdout(), "applied", applied)
	return errors.Join(err, printErr)
}

func migrateDown(cmd *cobra.Command, ledger *store.Store) error {
	return ledger.MigrateDown(cmd.Context())
}

func migrateStatus(cmd *cobra.Command, ledger *store.Store) error {
	states, err := ledger.MigrationStatus(cmd.Context())
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "VERSION\tNAME\tAPPLIED")
	for _, s := range states {
		applied := "no"
		if s.Applied {
			applied = s.At.UTC().Format("2006-01-02 15:04:05Z")
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\n", s.Version, s.Name, applied)
	}
	return w.Flush() // w keeps the first error
}
