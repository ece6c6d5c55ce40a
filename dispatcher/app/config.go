package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
)

// Config is how a dispatcher runs. Every field has a setting of the same name
// in the YAML file (http_listen), in the environment (DISPATCHER_HTTP_LISTEN)
// and, unless it is secret, among the flags (--http-listen).
type Config struct {
	PostgresDSN string `koanf:"postgres_dsn"`
	RedisURL    string `koanf:"redis_url"`

	MQTTURL      string `koanf:"mqtt_url"`
	MQTTUser     string `koanf:"mqtt_user"`
	MQTTPassword string `koanf:"mqtt_password"`
	MQTTCAFile   string `koanf:"mqtt_ca_file"`
	MQTTCertFile string `koanf:"mqtt_cert_file"`
	MQTTKeyFile  string `koanf:"mqtt_key_file"`

	HTTPListen     string `koanf:"http_listen"`
	OperatorListen string `koanf:"operator_listen"`
	TLSCertFile    string `koanf:"tls_cert_file"`
	TLSKeyFile     string `koanf:"tls_key_file"`
	TrustedProxies string `koanf:"trusted_proxies"`

	AdminToken     string `koanf:"admin_token"`
	FleetToken     string `koanf:"fleet_token"` // one, or two with a comma between
	FleetTokenMode string `koanf:"fleet_token_mode"`

	ReapInterval      time.Duration `koanf:"reap_interval"`
	ReconcileInterval time.Duration `koanf:"reconcile_interval"`
	LeaseMargin       time.Duration `koanf:"lease_margin"`
	LeaseMin          time.Duration `koanf:"lease_min"`
	ReportPeriod      time.Duration `koanf:"report_period"`
	LongPollMax       time.Duration `koanf:"long_poll_max"`
	Retention         string        `koanf:"retention"`

	Migrate   string `koanf:"migrate"`
	LogFormat string `koanf:"log_format"`
	LogLevel  string `koanf:"log_level"`
}

// Setting is one line of the configuration reference.
type Setting struct {
	Key     string // in YAML; in the environment DISPATCHER_ and upper case
	Default string
	Secret  bool // no flag; also read from the file that KEY_FILE names
	Help    string
}

// Env is the setting's environment variable.
func (s Setting) Env() string { return envPrefix + strings.ToUpper(s.Key) }

// Flag is the setting's command-line flag.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Key, "_", "-") }

// Settings are all there are, in the order of the reference.
func Settings() []Setting {
	return []Setting{
		{Key: "postgres_dsn", Secret: true, Help: "Postgres, as a URL or key=value pairs; needed"},
		{Key: "redis_url", Secret: true, Help: "Redis: redis://, rediss://, several hosts for a Cluster, redis+sentinel://; needed"},
		{Key: "mqtt_url", Help: "MQTT broker: mqtt://, tcp:// or mqtts://; empty: no MQTT"},
		{Key: "mqtt_user", Help: "user name at the broker"},
		{Key: "mqtt_password", Secret: true, Help: "password at the broker"},
		{Key: "mqtt_ca_file", Help: "PEM file of the broker's certificate authority"},
		{Key: "mqtt_cert_file", Help: "PEM file of the client certificate"},
		{Key: "mqtt_key_file", Help: "PEM file of its key"},
		{Key: "http_listen", Default: ":8080", Help: "address for devices and, unless operator_listen is set, for operators"},
		{Key: "operator_listen", Help: "address for operators and metrics only"},
		{Key: "tls_cert_file", Help: "PEM file of the certificate for both addresses"},
		{Key: "tls_key_file", Help: "PEM file of its key"},
		{Key: "trusted_proxies", Help: "reserved; not in effect in this release"},
		{Key: "admin_token", Secret: true, Help: "first operator token, role admin"},
		{Key: "fleet_token", Secret: true, Help: "one token, or two with a comma between, that stand for any device"},
		{Key: "fleet_token_mode", Default: "any", Help: "any: acts for any device; enroll: gives each a token of its own"},
		{Key: "reap_interval", Default: "5s", Help: "how often places of silent devices are taken back; 1s to 1m"},
		{Key: "reconcile_interval", Default: "10s", Help: "how often Redis is compared with the ledger; 1s to 5m"},
		{Key: "lease_margin", Default: "10s", Help: "kept back from every lease, at most a fifth of it; 0s to 5m"},
		{Key: "lease_min", Default: "1s", Help: "no device is given less; 10ms to 1m, below 1s only for tests"},
		{Key: "report_period", Default: "30s", Help: "when an idle device reports again; 1s to 24h"},
		{Key: "long_poll_max", Default: "60s", Help: "reserved; not in effect in this release"},
		{Key: "retention", Default: "90d", Help: "reserved; not in effect in this release"},
		{Key: "migrate", Default: "on", Help: "on: serve applies migrations; off: it refuses to start without them"},
		{Key: "log_format", Default: "text", Help: "text or json"},
		{Key: "log_level", Default: "info", Help: "debug, info, warn or error"},
	}
}

// Validate names every setting that does not fit, and its limit.
func (c Config) Validate() error {
	between := func(key string, d, least, most time.Duration) error {
		if d < least || d > most {
			return fmt.Errorf("%s: %s is not between %s and %s", key, d, least, most)
		}
		return nil
	}
	oneOf := func(key, value string, allowed ...string) error {
		for _, a := range allowed {
			if value == a {
				return nil
			}
		}
		return fmt.Errorf("%s: %q is none of %s", key, value, strings.Join(allowed, ", "))
	}
	return errors.Join(
		between("reap_interval", c.ReapInterval, time.Second, time.Minute),
		between("reconcile_interval", c.ReconcileInterval, time.Second, 5*time.Minute),
		between("lease_margin", c.LeaseMargin, 0, 5*time.Minute),
		between("lease_min", c.LeaseMin, 10*time.Millisecond, time.Minute),
		between("report_period", c.ReportPeriod, time.Second, 24*time.Hour),
		oneOf("fleet_token_mode", c.FleetTokenMode, string(dispatcher.FleetAny), string(dispatcher.FleetEnroll)),
		oneOf("migrate", c.Migrate, "on", "off"),
		oneOf("log_format", c.LogFormat, "text", "json"),
		oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error"),
		c.validateTokens(),
		c.validateTLS(),
	)
}

// minToken is the shortest token that is not refused as guessable.
const minToken = 16

func (c Config) validateTokens() error {
	var errs []error
	if c.AdminToken != "" && len(c.AdminToken) < minToken {
		errs = append(errs, fmt.Errorf("admin_token: at least %d characters", minToken))
	}
	fleet := c.fleetTokens()
	if len(fleet) > 2 {
		errs = append(errs, errors.New("fleet_token: at most two, with a comma between"))
	}
	for _, t := range fleet {
		if len(t) < minToken {
			errs = append(errs, fmt.Errorf("fleet_token: at least %d characters each", minToken))
		}
		if t == c.AdminToken {
			errs = append(errs, errors.New("fleet_token: must differ from admin_token"))
		}
	}
	return errors.Join(errs...)
}

func (c Config) validateTLS() error {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return errors.New("tls_cert_file, tls_key_file: both or neither")
	}
	if (c.MQTTCertFile == "") != (c.MQTTKeyFile == "") {
		return errors.New("mqtt_cert_file, mqtt_key_file: both or neither")
	}
	return nil
}

func (c Config) fleetTokens() []string {
	var tokens []string
	for t := range strings.SplitSeq(c.FleetToken, ",") {
		if t = strings.TrimSpace(t); t != "" {
			tokens = append(tokens, t)
		}
	}
	return tokens
}
