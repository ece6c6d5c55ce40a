package app

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// Config holds the settings of a dispatcher. Every field has a setting of the same name in the YAML
// file (http_listen), in the environment (DISPATCHER_HTTP_LISTEN) and, unless it is secret, among the
// flags (--http-listen). Each setting has a row in Settings.
type Config struct {
	PostgresDSN string `koanf:"postgres_dsn"`
	RedisURL    string `koanf:"redis_url"` // may name a file of certificate authorities: see redisconn.ParseURL

	MQTTURL       string        `koanf:"mqtt_url"`
	MQTTUser      string        `koanf:"mqtt_user"`
	MQTTPassword  string        `koanf:"mqtt_password"`
	MQTTProvision string        `koanf:"mqtt_provision"`
	MQTTSuspend   time.Duration `koanf:"mqtt_suspend"`
	MQTTCAFile    string        `koanf:"mqtt_ca_file"`
	MQTTCertFile  string        `koanf:"mqtt_cert_file"`
	MQTTKeyFile   string        `koanf:"mqtt_key_file"`

	HTTPListen     string `koanf:"http_listen"`
	OperatorListen string `koanf:"operator_listen"`
	TLSCertFile    string `koanf:"tls_cert_file"`
	TLSKeyFile     string `koanf:"tls_key_file"`
	TrustedProxies string `koanf:"trusted_proxies"`

	MetricsToken   string `koanf:"metrics_token"`
	AdminToken     string `koanf:"admin_token"`
	FleetToken     string `koanf:"fleet_token"` // one token, or two tokens separated by a comma
	FleetTokenMode string `koanf:"fleet_token_mode"`

	RegistrationRate  string `koanf:"registration_rate"`
	RegistrationBurst string `koanf:"registration_burst"`

	RegistrationApproval string `koanf:"registration_approval"`

	ReapInterval      time.Duration `koanf:"reap_interval"`
	ReconcileInterval time.Duration `koanf:"reconcile_interval"`
	LeaseMargin       time.Duration `koanf:"lease_margin"`
	LeaseMin          time.Duration `koanf:"lease_min"`
	ReportPeriod      time.Duration `koanf:"report_period"`
	ReportRate        string        `koanf:"report_rate"`
	ReportBurst       string        `koanf:"report_burst"`
	LongPollMax       time.Duration `koanf:"long_poll_max"`
	UrgentShare       string        `koanf:"urgent_share"`
	Retention         string        `koanf:"retention"`

	PublicURL     string `koanf:"public_url"`
	HawkbitTenant string `koanf:"hawkbit_tenant"`

	Web       string `koanf:"web"`
	WebPrefix string `koanf:"web_prefix"`
	SpoolDir  string `koanf:"spool_dir"`

	Migrate   string `koanf:"migrate"`
	LogFormat string `koanf:"log_format"`
	LogLevel  string `koanf:"log_level"`

	// AfterRestore is not a setting: in a configuration file, it would block grants to the whole fleet
	// after each start. If it is true, no pool grants anything for at least StandstillMin. See
	// ProtectAfterRestore of store.Store.
	AfterRestore  bool          `koanf:"-"`
	StandstillMin time.Duration `koanf:"-"`
}

// Validate returns an error that names every invalid setting and its limits.
func (c Config) Validate() error {
	values, err := c.settingValues()
	_, badProxy := c.trustedNetworks()
	errs := []error{err, badProxy}
	for _, s := range Settings() {
		errs = append(errs, s.checkValue(values[s.Key]))
	}
	return errors.Join(append(errs, c.validateServers(), c.validateRetention(), c.validateUrgentShare(), c.validateReportRates(), c.validateTokens(), c.validateMQTT(), c.validateProvision(), c.validateTLS(), c.validateWeb(), c.validateHawkbit())...)
}

// CheckComplete returns an error if a setting that Serve needs is missing.
func (c Config) CheckComplete() error {
	var missing []string
	for _, s := range []struct{ key, value string }{{"postgres_dsn", c.PostgresDSN}, {"redis_url", c.RedisURL}} {
		if s.value == "" {
			missing = append(missing, s.key)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s; `dispatcher dev` runs without servers", strings.Join(missing, ", "))
	}
	return nil
}

const day = 24 * time.Hour

// historyRetention returns the time for which history is kept. 0 means that it is kept forever.
func (c Config) historyRetention() (time.Duration, error) {
	if days, ok := strings.CutSuffix(c.Retention, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > 36500 {
			return 0, fmt.Errorf("retention: %q is not a number of days", c.Retention)
		}
		return time.Duration(n) * day, nil
	}
	if c.Retention == "" {
		return 0, nil
	}
	return time.ParseDuration(c.Retention)
}

func (c Config) validateRetention() error {
	keep, err := c.historyRetention()
	if err != nil || keep < 0 || keep > 0 && keep < day {
		return fmt.Errorf("retention: %q must be a number of days from 1d, such as 90d, a duration from 24h, such as 2160h, or 0", c.Retention)
	}
	return nil
}

// urgentSharePercent returns the setting urgent_share in percent. 0 means that the default applies.
func (c Config) urgentSharePercent() (percent int) {
	percent, _ = strconv.Atoi(strings.TrimSuffix(c.UrgentShare, "%")) // Validate has checked it
	return percent
}

func (c Config) validateUrgentShare() error {
	if percent := c.urgentSharePercent(); c.UrgentShare != "" && (percent < 1 || percent > 100 || !strings.HasSuffix(c.UrgentShare, "%")) {
		return errors.New("urgent_share: must be a whole percentage between 1% and 100%, such as 10%")
	}
	return nil
}

func (c Config) validateReportRates() error {
	var errs []error
	for _, s := range []struct {
		key, value string
		min, max   int
	}{
		{"report_rate", c.ReportRate, 0, 1000},
		{"report_burst", c.ReportBurst, 1, 10_000},
		{"registration_rate", c.RegistrationRate, 0, 1_000_000},
		{"registration_burst", c.RegistrationBurst, 1, 1_000_000},
	} {
		if n, err := strconv.Atoi(s.value); s.value != "" && (err != nil || n < s.min || n > s.max) {
			errs = append(errs, fmt.Errorf("%s: must be a whole number between %d and %d", s.key, s.min, s.max))
		}
	}
	return errors.Join(errs...)
}

// parseReportLimit returns the limit for the settings rate and burst, which Validate has checked.
func parseReportLimit(rate, burst string) pace.Options {
	perSecond, _ := strconv.Atoi(rate)
	atOnce, _ := strconv.Atoi(burst)
	return pace.Options{Rate: perSecond, Burst: atOnce}
}

// minTokenLength is the minimum length of a token. Shorter tokens are refused because they can be guessed.
const minTokenLength = 16

func (c Config) validateTokens() error {
	var errs []error
	for _, t := range []struct{ key, token string }{{"metrics_token", c.MetricsToken}, {"admin_token", c.AdminToken}} {
		if t.token != "" && len(t.token) < minTokenLength {
			errs = append(errs, fmt.Errorf("%s: at least %d characters", t.key, minTokenLength))
		}
	}
	fleet := c.fleetTokens()
	if len(fleet) > 2 {
		errs = append(errs, errors.New("fleet_token: at most two tokens, separated by a comma"))
	}
	for _, t := range fleet {
		if len(t) < minTokenLength {
			errs = append(errs, fmt.Errorf("fleet_token: at least %d characters each", minTokenLength))
		}
		if t == c.AdminToken {
			errs = append(errs, errors.New("fleet_token: must differ from admin_token"))
		}
	}
	return errors.Join(errs...)
}

// validateServers checks postgres_dsn and redis_url. Its errors quote no values, because they may contain passwords.
func (c Config) validateServers() error {
	var errs []error
	if c.PostgresDSN != "" {
		// The Postgres driver would parse an unknown scheme as a key, and send it to the server.
		scheme, _, isURL := strings.Cut(c.PostgresDSN, "://")
		other := isURL && !strings.Contains(scheme, "=") && scheme != "postgres" && scheme != "postgresql"
		if _, err := pq.NewConfig(c.PostgresDSN); err != nil || other {
			errs = append(errs, errors.New("postgres_dsn: must be a URL (postgres://user:password@host/database, percent-encoded) or key=value pairs"))
		}
	}
	if c.RedisURL != "" {
		if _, err := redisconn.ParseURL(c.RedisURL); err != nil {
			errs = append(errs, fmt.Errorf("redis_url: %w", err))
		}
	}
	return errors.Join(errs...)
}

// serverAddresses returns the hosts and ports of Postgres, Redis and the broker. An address is empty if there is no such server.
func (c Config) serverAddresses() (postgres, redis, broker string) {
	if server, err := pq.NewConfig(c.PostgresDSN); err == nil && c.PostgresDSN != "" {
		postgres = net.JoinHostPort(cmp.Or(server.Host, "localhost"), strconv.Itoa(int(server.Port)))
	}
	if servers, err := redisconn.ParseURL(c.RedisURL); err == nil {
		redis = strings.Join(servers.Addrs, ", ")
	}
	if server, err := url.Parse(c.MQTTURL); err == nil && c.MQTTURL != "" {
		broker = net.JoinHostPort(server.Hostname(), cmp.Or(server.Port(), map[string]string{"mqtts": "8883"}[server.Scheme], "1883"))
	}
	return postgres, redis, broker
}

// Values of settings that switch something on or off.
const (
	settingOn  = "on"
	settingOff = "off"
)

// Values of mqtt_provision.
const (
	provisionOff    = "off"
	provisionDynsec = "dynsec"
)

// validateProvision returns an error if mqtt_provision is invalid or lacks other settings.
func (c Config) validateProvision() error {
	if c.MQTTProvision != provisionDynsec {
		return nil
	}
	if c.MQTTURL == "" || c.MQTTUser == "" || c.MQTTPassword == "" {
		return errors.New("mqtt_provision: dynsec needs mqtt_url, mqtt_user and mqtt_password")
	}
	if _, err := devices.ParseID(c.MQTTUser); err == nil {
		return errors.New("mqtt_user: with mqtt_provision it must not be a valid device id, or it would be that device's account: use _dispatcher")
	}
	return nil
}

// validateMQTT checks mqtt_url. Its errors do not contain passwords.
func (c Config) validateMQTT() error {
	if c.MQTTURL == "" {
		return nil
	}
	u, err := url.Parse(c.MQTTURL)
	if err != nil || u.Host == "" {
		return errors.New("mqtt_url: must be mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]")
	}
	if u.User != nil {
		return errors.New("mqtt_url: must not contain user and password; set mqtt_user and mqtt_password")
	}
	return nil
}

func (c Config) validateTLS() error {
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return errors.New("tls_cert_file, tls_key_file: set both or neither")
	}
	if (c.MQTTCertFile == "") != (c.MQTTKeyFile == "") {
		return errors.New("mqtt_cert_file, mqtt_key_file: set both or neither")
	}
	return nil
}

// Values of web.
const (
	webOn       = "on"
	webReadOnly = "read-only"
	webOff      = "off"
)

func (c Config) validateWeb() error {
	if c.WebPrefix == "" || regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`).MatchString(c.WebPrefix) && path.Clean(c.WebPrefix) == c.WebPrefix {
		return nil
	}
	return errors.New("web_prefix: must be a path such as /dispatcher, without a slash at its end")
}

// trustedNetworks returns the networks whose X-Forwarded-For header is trusted.
func (c Config) trustedNetworks() ([]netip.Prefix, error) {
	var list []netip.Prefix
	for text := range strings.FieldsFuncSeq(c.TrustedProxies, func(r rune) bool { return r == ',' || r == ' ' }) {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			one, bad := netip.ParseAddr(text)
			if bad != nil || one.Zone() != "" {
				return nil, fmt.Errorf("trusted_proxies: entry %d must be an address or a network such as 10.0.0.0/8", len(list)+1)
			}
			network = netip.PrefixFrom(one, one.BitLen())
		}
		list = append(list, network.Masked())
	}
	return list, nil
}

// fleetTokens returns the fleet tokens: none, one or two.
func (c Config) fleetTokens() []string {
	var tokens []string
	for t := range strings.SplitSeq(c.FleetToken, ",") {
		if t = strings.TrimSpace(t); t != "" {
			tokens = append(tokens, t)
		}
	}
	return tokens
}
