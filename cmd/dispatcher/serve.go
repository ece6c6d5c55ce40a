package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/store"
)

func serveCommand() *cobra.Command {
	var settings *configReader
	var restored restoreFlag
	command := &cobra.Command{
		Use:   "serve",
		Short: "Run on Postgres, Redis and an MQTT broker",
		Long: `Run on Postgres, Redis and an MQTT broker, as one of any number of replicas.

Settings come from the defaults, then a YAML file, then the environment
(DISPATCHER_ and the flag's name in upper case with _ for -), then flags.
Secrets (DISPATCHER_POSTGRES_DSN, _REDIS_URL, _MQTT_PASSWORD, _ADMIN_TOKEN,
_FLEET_TOKEN) have no flag. Each also has a variable that ends in _FILE and
names a file with the secret.

Exit status 2 if settings are invalid or missing, 1 if it cannot start or
fails, 0 after SIGTERM or SIGINT.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := settings.loadConfig(cmd.Flags())
			if err == nil {
				err = config.CheckComplete()
			}
			if err != nil {
				return usageError{err}
			}
			config.AfterRestore, config.StandstillMin = restored.isRestored, restored.minStandstill
			log := newLogger(cmd.ErrOrStderr(), config.LogFormat, config.LogLevel)
			app.SetRedisLog(log)
			return app.Serve(cmd.Context(), config, log, version)
		},
	}
	settings = addConfigFlag(command.Flags())
	addSettingFlags(command.Flags())
	restored.addTo(command.Flags())
	return command
}

// restoreFlag is the value of the flag --after-restore. If minStandstill is 0, the operator gave the flag without a
// duration.
type restoreFlag struct {
	isRestored    bool
	minStandstill time.Duration
}

// addTo adds the flag --after-restore to flags.
func (f *restoreFlag) addTo(flags *pflag.FlagSet) {
	flags.Var(f, "after-restore",
		"use once after Postgres was restored or lost commits: each pool grants nothing, on any replica, for the longest lease that it may have given, and for at least this duration, 5m if none is given")
	flags.Lookup("after-restore").NoOptDefVal = "5m"
}

// Set parses text. A duration is the minimum standstill after a restore of the ledger. A boolean is true if the ledger
// was restored.
func (f *restoreFlag) Set(text string) (err error) {
	if f.isRestored, err = strconv.ParseBool(text); err == nil {
		f.minStandstill = 0
		return nil
	}
	if f.minStandstill, err = time.ParseDuration(text); err != nil || f.minStandstill <= 0 {
		return errors.New("must be a duration such as 24h, or empty")
	}
	f.isRestored = true
	return nil
}

// String returns an empty text, so that the help shows no default for the flag.
func (f *restoreFlag) String() string { return "" }

func (f *restoreFlag) Type() string { return "duration" }

// configReader reads the configuration of a command. file is the path in --config.
type configReader struct{ file string }

// addConfigFlag adds the flag --config, which every command with a configuration has.
func addConfigFlag(flags *pflag.FlagSet) *configReader {
	s := &configReader{}
	flags.StringVar(&s.file, "config", "", "YAML file with settings")
	return s
}

// addSettingFlags adds a flag for each setting that is not a secret.
func addSettingFlags(flags *pflag.FlagSet) {
	for _, setting := range app.Settings() {
		if !setting.Secret {
			flags.String(setting.Flag(), setting.Default, setting.Usage()+" ("+setting.Env()+")")
		}
	}
}

// loadConfig returns the configuration from the file, the environment and flags.
func (s *configReader) loadConfig(flags *pflag.FlagSet) (app.Config, error) {
	var file []byte
	var err error
	if s.file != "" {
		if file, err = os.ReadFile(s.file); err != nil {
			return app.Config{}, fmt.Errorf("--config: %w", err)
		}
	}
	set := make(map[string]string)
	for _, setting := range app.Settings() {
		if flag := flags.Lookup(setting.Flag()); flag != nil && flag.Changed {
			set[setting.Flag()] = flag.Value.String()
		}
	}
	return app.Load(file, os.Environ(), set)
}

func migrateCommand() *cobra.Command {
	command := &cobra.Command{Use: "migrate", Short: "Change or show the schema of the Postgres database (DISPATCHER_POSTGRES_DSN)"}
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	s := addConfigFlag(command.PersistentFlags())
	add := func(verb, short string, work func(*cobra.Command, *store.Store) error) {
		command.AddCommand(&cobra.Command{Use: verb, Short: short, RunE: func(cmd *cobra.Command, _ []string) error { return withLedger(cmd, s, work) }})
	}
	add("up", "Apply every migration that is missing", func(cmd *cobra.Command, ledger *store.Store) error {
		applied, err := ledger.Migrate(cmd.Context())
		_, printErr := fmt.Fprintln(cmd.OutOrStdout(), "applied", applied)
		return errors.Join(err, printErr)
	})
	add("down", "Undo the newest migration, and delete its data", func(cmd *cobra.Command, ledger *store.Store) error { return ledger.MigrateDown(cmd.Context()) })
	add("status", "List the migrations", writeMigrationStatus)
	return command
}

// withLedger opens the ledger of the configuration, runs work with it, and closes it.
func withLedger(cmd *cobra.Command, configuration *configReader, work func(*cobra.Command, *store.Store) error) (err error) {
	config, err := configuration.loadConfig(cmd.Flags())
	if err != nil {
		return usageError{err}
	}
	if config.PostgresDSN == "" {
		return usageError{errors.New("postgres_dsn: required")}
	}
	ledger, err := store.OpenPostgres(cmd.Context(), config.PostgresDSN, store.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	return work(cmd, ledger)
}

func writeMigrationStatus(cmd *cobra.Command, ledger *store.Store) error {
	states, err := ledger.MigrationStatus(cmd.Context())
	if err != nil {
		return err
	}
	t := terminal.NewTable(cmd.OutOrStdout(), "VERSION", "NAME", "APPLIED")
	for _, s := range states {
		applied := "no"
		if s.Applied {
			applied = s.At.UTC().Format(terminal.TimeLayout)
		}
		t.AddRow(strconv.FormatInt(s.Version, 10), s.Name, applied)
	}
	return t.Flush()
}
