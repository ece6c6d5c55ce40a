package app

import (
	"log/slog"
	"strings"

	"github.com/go-viper/mapstructure/v2"
)

const envPrefix = "DISPATCHER_"

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

// redacted stands for a secret that is set.
const redacted = "***"

// LogValue is the configuration for a log, one attribute per setting, without
// its secrets.
func (c Config) LogValue() slog.Value {
	values := make(map[string]any)
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{Result: &values, TagName: "koanf"})
	if err == nil {
		err = decoder.Decode(c)
	}
	if err != nil {
		return slog.StringValue(err.Error())
	}
	var attributes []slog.Attr
	for _, s := range Settings() {
		value := values[s.Key]
		if s.Secret && value != "" {
			value = redacted
		}
		attributes = append(attributes, slog.Any(s.Key, value))
	}
	return slog.GroupValue(attributes...)
}
