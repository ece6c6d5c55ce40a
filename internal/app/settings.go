package app

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/terminal"
)

const envPrefix = "DISPATCHER_"

// Setting describes one setting, as in a line of the configuration reference.
type Setting struct {
	Key     string // name in YAML; the environment variable is DISPATCHER_ and the key in upper case
	Default string
	Secret  bool // a secret has no flag, and can also be read from the file that the environment variable Env() + "_FILE" names
	Help    string

	Min, Max time.Duration // limits of a duration, inclusive; Max is 0 if the type of the setting is not time.Duration
	Choices  []string      // the permitted values; if empty, any value is permitted
}

// Env returns the environment variable of the setting.
func (s Setting) Env() string { return envPrefix + strings.ToUpper(s.Key) }

// Flag returns the command-line flag of the setting.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Key, "_", "-") }

// Range returns the permitted values as text. It is empty if any value is permitted.
func (s Setting) Range() string {
	if s.Max > 0 {
		return terminal.FormatDuration(s.Min) + " to " + terminal.FormatDuration(s.Max)
	}
	return strings.Join(s.Choices, ", ")
}

// Usage returns the help and, for a duration, its limits in one line.
func (s Setting) Usage() string {
	if s.Max > 0 {
		return s.Help + "; " + s.Range()
	}
	return s.Help
}

func (s Setting) checkValue(value any) error {
	switch v := value.(type) {
	case time.Duration:
		if s.Max > 0 && (v < s.Min || v > s.Max) {
			return fmt.Errorf("%s: %s is not between %s and %s", s.Key, v, terminal.FormatDuration(s.Min), terminal.FormatDuration(s.Max))
		}
	case string:
		if len(s.Choices) > 0 && !slices.Contains(s.Choices, v) {
			return fmt.Errorf("%s: %q is not one of %s", s.Key, v, s.Range())
		}
	}
	return nil
}

// Settings returns all settings of serve, in the order of the reference. dev does not use their defaults: DevServer.newConfig
// sets its values.
func Settings() []Setting {
	return []Setting{
		{Key: "postgres_dsn", Secret: true, Help: "Postgres server, as a URL or key=value pairs; required; set sslmode explicitly, e.g. verify-full"},
		{Key: "redis_url", Secret: true, Help: "Redis: redis:// or rediss:// with one host, or with one or more hosts of a Cluster; or redis+sentinel://; parameters: ?ca_file=, ?sentinel_user=&sentinel_password=; required"},
		{Key: "mqtt_url", Help: "MQTT broker: mqtt://, tcp:// or mqtts://; empty: no MQTT"},
		{Key: "mqtt_user", Help: "user name at the broker"},
		{Key: "mqtt_password", Secret: true, Help: "password at the broker"},
		{Key: "mqtt_provision", Default: provisionOff, Choices: []string{provisionOff, provisionDynsec}, Help: "dynsec: the accounts of devices at mosquitto are created and deleted with the devices, through its dynamic-security plugin"},
		{Key: "mqtt_suspend", Default: "1m", Help: "with mqtt_provision dynsec: how long the account of a device is disabled after the device reported over MQTT above report_rate for 10s; 0: not at all", Min: 0, Max: time.Hour},
		{Key: "mqtt_ca_file", Help: "PEM file of the broker's certificate authority"},
		{Key: "mqtt_cert_file", Help: "PEM file of the client certificate"},
		{Key: "mqtt_key_file", Help: "PEM file of the key of the client certificate"},
		{Key: "http_listen", Default: ":8080", Help: "address for devices and, unless operator_listen is set, for operators"},
		{Key: "operator_listen", Help: "address for operators and metrics only"},
		{Key: "tls_cert_file", Help: "PEM file of the certificate for both addresses; TLS 1.2 or newer"},
		{Key: "tls_key_file", Help: "PEM file of the key of the certificate"},
		{Key: "trusted_proxies", Help: "addresses or networks, separated by commas, of proxies whose X-Forwarded-For is trusted when wrong tokens are counted, and when refusals and registrations are recorded; empty: none"},
		{Key: "metrics_token", Secret: true, Help: "bearer token that /metrics needs, at least 16 characters; empty: everybody who reaches the address can read the metrics, which name the pools"},
		{Key: "admin_token", Secret: true, Help: "first operator token, role admin; at least 16 characters"},
		{Key: "fleet_token", Secret: true, Help: "one token, or two separated by a comma, that any device may use; at least 16 characters each"},
		{Key: "fleet_token_mode", Default: "any", Choices: []string{string(credentials.FleetAny), string(credentials.FleetEnroll)}, Help: "any: the fleet token acts for any device; enroll: a device can only use it to get a token of its own"},
		{Key: "registration_rate", Default: "10", Help: "unknown devices that one fleet token, or all MQTT sessions together, may register a second, at each replica; 0: no limit"},
		{Key: "registration_burst", Default: "1000", Help: "unknown devices that may be registered at once, before registration_rate applies; at least 1"},
		{Key: "registration_approval", Default: settingOff, Choices: []string{settingOn, settingOff}, Help: "on: an unknown device that registers itself is blocked until an operator unblocks it"},
		{Key: "reap_interval", Default: "5s", Help: "how often slots of silent devices are taken back", Min: time.Second, Max: time.Minute},
		{Key: "reconcile_interval", Default: "10s", Help: "how often Redis is compared with the ledger", Min: time.Second, Max: 5 * time.Minute},
		{Key: "lease_margin", Default: "10s", Help: "safety margin that is subtracted from the working time of every lease, at most a fifth of the lease", Min: 0, Max: 5 * time.Minute},
		{Key: "lease_min", Default: "1s", Help: "shortest working time that a lease gives a device; below 1s only for tests", Min: 10 * time.Millisecond, Max: time.Minute},
		{Key: "report_period", Default: "30s", Help: "time between two reports of an idle device", Min: time.Second, Max: 24 * time.Hour},
		{Key: "report_rate", Default: "20", Help: "reports a second that one device may send to a replica on average, counted separately for its own token, the fleet token and MQTT: 0 to 1000; more are refused with busy_server; 0: no limit"},
		{Key: "report_burst", Default: "100", Help: "reports that one device may send to a replica at once, above report_rate: 1 to 10000"},
		{Key: "long_poll_max", Default: "60s", Help: "maximum time for which the reply to a report may wait for a task (Prefer: wait), in whole seconds; 0: replies do not wait", Min: 0, Max: 10 * time.Minute},
		{Key: "urgent_share", Default: "10%", Help: "share of a pool's capacity, rounded up to whole slots, up to which urgent batches go before all others: 1% to 100%"},
		{Key: "retention", Default: "90d", Help: "how long events and ended attempts and batches are kept: days (90d) or a duration (2160h), at least 1d; 0: forever"},
		{Key: "spool_dir", Help: "folder for streamed batches above 1 MiB until they are complete, at most 5 batches of 2 GiB at once; empty: the system's folder for temporary files"},
		{Key: "public_url", Help: "address under which devices reach the dispatcher, e.g. https://fleet.example.com: start of the links in answers to devices that speak hawkBit's DDI; empty: from the Host of each request"},
		{Key: "hawkbit_tenant", Default: defaultTenant, Help: "tenant of devices that speak hawkBit's DDI: the first part of their paths, 1 to 40 letters, digits, - or _; off: such devices are not served"},
		{Key: "web", Default: webOn, Choices: []string{webOn, webReadOnly, webOff}, Help: "whether the dashboard is served; read-only: no role can change anything there"},
		{Key: "web_prefix", Help: "path under which a proxy shows the dashboard, e.g. /dispatcher"},
		{Key: "migrate", Default: settingOn, Choices: []string{settingOn, settingOff}, Help: "on: serve applies missing migrations; off: serve refuses to start if migrations are missing"},
		{Key: "log_format", Default: "text", Choices: []string{"text", "json"}, Help: "format of the log: text or json"},
		{Key: "log_level", Default: "info", Choices: []string{"debug", "info", "warn", "error"}, Help: "lowest level that is logged: debug, info, warn or error"},
	}
}

// redacted replaces a secret that is set.
const redacted = "***"

// LogValue returns the configuration for a log, one attribute per setting, without the secrets.
func (c Config) LogValue() slog.Value {
	values, err := c.settingValues()
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

// settingValues returns the configuration as a map from keys to values.
func (c Config) settingValues() (valueByKey map[string]any, err error) {
	values := make(map[string]any)
	decoder, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{Result: &values, TagName: "koanf"})
	if err != nil {
		return nil, err
	}
	return values, decoder.Decode(c)
}
