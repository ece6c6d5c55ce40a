package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/store"
)

const (
	postgresWait  = time.Minute // time limit of waitForPostgres; it allows for a Postgres that starts at the same time
	postgresRetry = time.Second // time between two attempts
)

// Serve runs a dispatcher on real servers until ctx ends. version is the version of this program.
func Serve(ctx context.Context, config Config, log *slog.Logger, version string) error {
	if err := config.CheckComplete(); err != nil {
		return err
	}
	log.InfoContext(ctx, "configuration", "settings", config)
	a, err := newServerApp(ctx, config, log, version)
	if err != nil {
		return err
	}
	return a.run(ctx)
}

// newServerApp returns an App on real servers, whose listeners are open.
func newServerApp(ctx context.Context, config Config, log *slog.Logger, version string) (_ *App, err error) {
	var opened cleanup
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.closeAll(context.WithoutCancel(ctx)))
		}
	}()
	l, err := bindListeners(config, &opened)
	if err != nil {
		return nil, err
	}
	redisOptions, err := redisconn.ParseURL(config.RedisURL)
	if err != nil {
		return nil, fmt.Errorf("redis_url: %w", err)
	}
	f := newTransports(l, log)
	for _, s := range f.servers {
		opened.add("http", s.http.Close)
	}
	f.start() // answers requests while the process waits for Postgres
	ledger, err := openPostgres(ctx, config, log, f.starting)
	if err != nil {
		return nil, err
	}
	opened.add("postgres", ledger.Close)
	client := redisconn.Open(redisOptions)
	opened.add("redis", client.Close)
	b := backends{store: ledger, redis: client}
	accounts, err := newProvisioning(config, log)
	if err != nil {
		return nil, err
	}
	if accounts != nil { // avoids a nil pointer in a non-nil interface
		b.accounts = accounts
		opened.add("accounts at the broker", accounts.Close)
	}
	a := assembleApp(config, log, version, b, f) //nolint:contextcheck // a handler uses the context of its request
	a.accounts = accounts
	if config.MQTTURL != "" {
		options, err := config.BrokerOptions()
		if err != nil {
			return nil, err
		}
		if err := a.attachMQTT(options); err != nil {
			return nil, err
		}
	}
	a.cleanup = opened
	return a, nil
}

// bindListeners opens the listeners, with TLS if it is configured.
func bindListeners(config Config, opened *cleanup) (listeners, error) {
	var l listeners
	for _, one := range []struct {
		name, address string
		to            *net.Listener
	}{{"http_listen", config.HTTPListen, &l.device}, {"operator_listen", config.OperatorListen, &l.operator}} {
		if one.address == "" {
			continue
		}
		listener, err := net.Listen("tcp", one.address)
		if err != nil {
			return l, fmt.Errorf("%s: %w", one.name, err)
		}
		opened.add(one.name, listener.Close)
		if *one.to, err = withTLS(listener, config); err != nil {
			return l, err
		}
	}
	return l, nil
}

func withTLS(inner net.Listener, config Config) (net.Listener, error) {
	if config.TLSCertFile == "" {
		return inner, nil
	}
	certificate, err := tls.LoadX509KeyPair(config.TLSCertFile, config.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("tls_cert_file, tls_key_file: %w", err)
	}
	return tls.NewListener(inner, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"},
	}), nil
}

// openPostgres waits for Postgres and refuses a server that may lose commits. It then applies migrations and, after a restore, blocks
// grants. Until openPostgres returns, the handler `starting` answers readiness requests with the name of the check that is not fulfilled
// yet.
func openPostgres(ctx context.Context, config Config, log *slog.Logger, starting *api.StartingHandler) (*store.Store, error) {
	starting.SetMissingCheck("postgres")
	ledger, err := waitForPostgres(ctx, config.PostgresDSN, log)
	if err != nil {
		return nil, err
	}
	starting.SetMissingCheck("migrations")
	err = ledger.CheckSettings(ctx)
	if err == nil {
		err = applyOrCheckMigrations(ctx, ledger, config.Migrate, log)
	}
	if err == nil {
		err = blockGrantsAfterRestore(ctx, ledger, config, log)
	}
	if err != nil {
		return nil, errors.Join(err, ledger.Close()) //nolint:contextcheck // the ledger is closed even if ctx has ended
	}
	return ledger, nil
}

// waitForPostgres opens the ledger at dsn. It tries again until Postgres answers or postgresWait has passed.
func waitForPostgres(ctx context.Context, dsn string, log *slog.Logger) (*store.Store, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresWait)
	defer cancel()
	retry := time.NewTicker(postgresRetry)
	defer retry.Stop()
	for {
		ledger, err := store.OpenPostgres(ctx, dsn, store.Options{})
		if err == nil {
			return ledger, nil
		}
		log.WarnContext(ctx, "waiting for Postgres", "err", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("postgres_dsn: gave up waiting for Postgres: %w", err)
		case <-retry.C:
		}
	}
}

// applyOrCheckMigrations applies the missing migrations if migrateSetting is "on". Otherwise it returns an error if a migration is
// missing.
func applyOrCheckMigrations(ctx context.Context, ledger *store.Store, migrateSetting string, log *slog.Logger) error {
	if migrateSetting == settingOn {
		applied, err := ledger.Migrate(ctx)
		if applied > 0 {
			log.InfoContext(ctx, "migrations applied", "count", applied)
		}
		return err
	}
	states, err := ledger.MigrationStatus(ctx)
	if err != nil {
		return err
	}
	for _, s := range states {
		if !s.Applied {
			return fmt.Errorf("migration %d (%s) is missing: run `dispatcher migrate up`", s.Version, s.Name)
		}
	}
	return nil
}

// blockGrantsAfterRestore starts a standstill if config.AfterRestore is true. During a standstill, no pool grants
// anything. Every start of the dispatcher during a standstill logs when the standstill ends.
func blockGrantsAfterRestore(ctx context.Context, ledger *store.Store, config Config, log *slog.Logger) error {
	if config.AfterRestore {
		if _, err := ledger.ProtectAfterRestore(ctx, "serve --after-restore", config.StandstillMin); err != nil {
			return err
		}
		log.WarnContext(ctx, "--after-restore started a standstill: remove the flag before the next start, or the standstill starts again")
	}
	standstill, err := ledger.Standstill(ctx)
	if err == nil && standstill.Pools > 0 {
		log.WarnContext(ctx, "the ledger was restored: NOTHING IS GRANTED in these pools, by any replica, for now",
			"pools", standstill.Pools, "first_until", standstill.First, "last_until", standstill.Last)
	}
	return err
}

// BrokerOptions returns the options for the connection to the MQTT broker.
func (c Config) BrokerOptions() (mqtt.Options, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.MQTTCAFile != "" {
		pem, err := os.ReadFile(c.MQTTCAFile)
		if err != nil {
			return mqtt.Options{}, fmt.Errorf("mqtt_ca_file: %w", err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return mqtt.Options{}, fmt.Errorf("mqtt_ca_file: %s contains no certificate", c.MQTTCAFile)
		}
	}
	if c.MQTTCertFile != "" {
		certificate, err := tls.LoadX509KeyPair(c.MQTTCertFile, c.MQTTKeyFile)
		if err != nil {
			return mqtt.Options{}, fmt.Errorf("mqtt_cert_file, mqtt_key_file: %w", err)
		}
		settings.Certificates = []tls.Certificate{certificate}
	}
	return mqtt.Options{URL: c.MQTTURL, User: c.MQTTUser, Password: c.MQTTPassword, TLS: settings}, nil
}
