package app

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// canary is a secret in the tests. No message of the program may contain it or a part of it.
const canary = "Kq7vW2canaryX9pL4"

func leaksCanary(text string) bool {
	for i := range len(canary) - 5 {
		if strings.Contains(text, canary[i:i+6]) {
			return true
		}
	}
	return false
}

// TestAddressesOfServersHaveNoSecrets checks the addresses that the system page shows.
func TestAddressesOfServersHaveNoSecrets(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		config Config
		want   string
	}{
		{Config{PostgresDSN: "postgres://u:" + canary + "@db:6000/d?sslmode=disable", RedisURL: "redis://u:" + canary + "@c1:7000,c2", MQTTURL: "mqtts://b"}, "db:6000|c1:7000, c2:6379|b:8883"},
		{Config{PostgresDSN: "host=db user=u password=" + canary, RedisURL: "redis://c", MQTTURL: "mqtt://b:1"}, "db:5432|c:6379|b:1"},
		{Config{}, "||"},
	} {
		postgres, redis, broker := one.config.serverAddresses()
		if got := postgres + "|" + redis + "|" + broker; got != one.want {
			t.Errorf("addresses %q, want %q", got, one.want)
		}
	}
}

func TestSettingsAreThoseOfTheProtocol(t *testing.T) {
	t.Parallel()
	want := map[string]string{ // variable -> default
		"DISPATCHER_POSTGRES_DSN": "", "DISPATCHER_REDIS_URL": "", "DISPATCHER_MQTT_URL": "",
		"DISPATCHER_MQTT_USER": "", "DISPATCHER_MQTT_PASSWORD": "", "DISPATCHER_MQTT_PROVISION": "off", "DISPATCHER_MQTT_SUSPEND": "1m",
		"DISPATCHER_MQTT_CA_FILE": "", "DISPATCHER_MQTT_CERT_FILE": "", "DISPATCHER_MQTT_KEY_FILE": "",
		"DISPATCHER_HTTP_LISTEN": ":8080", "DISPATCHER_OPERATOR_LISTEN": "",
		"DISPATCHER_TLS_CERT_FILE": "", "DISPATCHER_TLS_KEY_FILE": "",
		"DISPATCHER_METRICS_TOKEN": "", "DISPATCHER_ADMIN_TOKEN": "", "DISPATCHER_FLEET_TOKEN": "", "DISPATCHER_FLEET_TOKEN_MODE": "any",
		"DISPATCHER_REGISTRATION_RATE": "10", "DISPATCHER_REGISTRATION_BURST": "1000", "DISPATCHER_REGISTRATION_APPROVAL": "off",
		"DISPATCHER_REAP_INTERVAL": "5s", "DISPATCHER_RECONCILE_INTERVAL": "10s",
		"DISPATCHER_LEASE_MARGIN": "10s", "DISPATCHER_LEASE_MIN": "1s", "DISPATCHER_REPORT_PERIOD": "30s",
		"DISPATCHER_REPORT_RATE": "20", "DISPATCHER_REPORT_BURST": "100",
		"DISPATCHER_LONG_POLL_MAX": "60s", "DISPATCHER_URGENT_SHARE": "10%", "DISPATCHER_RETENTION": "90d", "DISPATCHER_TRUSTED_PROXIES": "",
		"DISPATCHER_MIGRATE": "on", "DISPATCHER_LOG_FORMAT": "text", "DISPATCHER_LOG_LEVEL": "info",
		"DISPATCHER_WEB": "on", "DISPATCHER_WEB_PREFIX": "", "DISPATCHER_SPOOL_DIR": "", "DISPATCHER_PUBLIC_URL": "", "DISPATCHER_HAWKBIT_TENANT": "DEFAULT",
	}
	got := make(map[string]string)
	for _, s := range Settings() {
		got[s.Env()] = s.Default
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-protocol +built):\n%s", diff)
	}
}

func TestEmptyFilesGiveTheDefaults(t *testing.T) {
	t.Parallel()
	want := Config{
		HTTPListen: ":8080", FleetTokenMode: "any", RegistrationRate: "10", RegistrationBurst: "1000", RegistrationApproval: "off", Migrate: "on", MQTTProvision: "off", LogFormat: "text", LogLevel: "info", Retention: "90d", UrgentShare: "10%",
		ReapInterval: 5 * time.Second, ReconcileInterval: 10 * time.Second, LeaseMargin: 10 * time.Second,
		LeaseMin: time.Second, ReportPeriod: 30 * time.Second, LongPollMax: time.Minute, Web: "on", HawkbitTenant: "DEFAULT",
		MQTTSuspend: time.Minute, ReportRate: "20", ReportBurst: "100",
	}
	for name, file := range map[string]string{"none": "", "comment": "# nothing\n", "empty mapping": "{}\n"} {
		got, err := Load([]byte(file), nil, nil)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// TestEverySettingIsRead checks each setting of the program: it is stored in its field, whichever source has the
// setting.
func TestEverySettingIsRead(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"postgres_dsn": "postgres://u:p@db/x", "redis_url": "redis://r", "mqtt_url": "mqtt://b", "mqtt_user": "_u", "mqtt_password": "p", "mqtt_provision": "dynsec",
		"mqtt_ca_file": "ca", "mqtt_cert_file": "c", "mqtt_key_file": "k", "http_listen": ":1", "operator_listen": ":2",
		"tls_cert_file": "tc", "tls_key_file": "tk", "trusted_proxies": "10.0.0.0/8",
		"metrics_token": "metrics-token-of-16", "admin_token": "admin-token-of-16", "fleet_token": "fleet-token-of-16,other-token-of-16", "fleet_token_mode": "enroll", "registration_rate": "7", "registration_burst": "8", "registration_approval": "on",
		"reap_interval": "1s", "reconcile_interval": "2s", "lease_margin": "3s", "lease_min": "4s", "report_period": "5s",
		"long_poll_max": "6s", "urgent_share": "25%", "retention": "7d", "migrate": "off", "log_format": "json", "log_level": "debug",
		"web": "read-only", "web_prefix": "/slots", "spool_dir": "/spool", "public_url": "https://fleet.test", "hawkbit_tenant": "field",
		"mqtt_suspend": "7s", "report_rate": "8", "report_burst": "9",
	}
	want := Config{
		PostgresDSN: "postgres://u:p@db/x", RedisURL: "redis://r", MQTTURL: "mqtt://b", MQTTUser: "_u", MQTTPassword: "p", MQTTProvision: "dynsec",
		MQTTCAFile: "ca", MQTTCertFile: "c", MQTTKeyFile: "k", HTTPListen: ":1", OperatorListen: ":2",
		TLSCertFile: "tc", TLSKeyFile: "tk", TrustedProxies: "10.0.0.0/8",
		MetricsToken: "metrics-token-of-16", AdminToken: "admin-token-of-16", FleetToken: "fleet-token-of-16,other-token-of-16", FleetTokenMode: "enroll", RegistrationRate: "7", RegistrationBurst: "8", RegistrationApproval: "on",
		ReapInterval: 1 * time.Second, ReconcileInterval: 2 * time.Second, LeaseMargin: 3 * time.Second, LeaseMin: 4 * time.Second,
		ReportPeriod: 5 * time.Second, LongPollMax: 6 * time.Second, UrgentShare: "25%", Retention: "7d", Migrate: "off", LogFormat: "json", LogLevel: "debug",
		Web: "read-only", WebPrefix: "/slots", SpoolDir: "/spool", PublicURL: "https://fleet.test", HawkbitTenant: "field",
		MQTTSuspend: 7 * time.Second, ReportRate: "8", ReportBurst: "9",
	}
	var file bytes.Buffer
	var environ, secrets []string
	flags := make(map[string]string)
	for _, s := range Settings() {
		value, ok := values[s.Key]
		if !ok {
			t.Fatalf("%s is not in this test", s.Key)
		}
		fmt.Fprintf(&file, "%s: %q\n", s.Key, value)
		environ = append(environ, s.Env()+"="+value)
		if s.Secret {
			secrets = append(secrets, s.Env()+"_FILE="+writeTempFile(t, value+"\n"))
		} else {
			flags[s.Flag()] = value
		}
	}
	for name, load := range map[string]func() (Config, error){
		"file":                   func() (Config, error) { return Load(file.Bytes(), nil, nil) },
		"environment":            func() (Config, error) { return Load(nil, environ, nil) },
		"flags and secret files": func() (Config, error) { return Load(nil, secrets, flags) },
	} {
		got, err := load()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func writeTempFile(tb testing.TB, content string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "file")
	must.Succeed(tb, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestLaterLayersWin(t *testing.T) {
	t.Parallel()
	const file = "reap_interval: 2s\nreconcile_interval: 2s\nlease_margin: 2s\nmqtt_user: file\n"
	environ := []string{"DISPATCHER_RECONCILE_INTERVAL=3s", "DISPATCHER_LEASE_MARGIN=3s", "DISPATCHER_MQTT_USER="}
	got, err := Load([]byte(file), environ, map[string]string{"lease-margin": "4s"})
	must.Succeed(t, err)
	if got.ReportPeriod != 30*time.Second || got.ReapInterval != 2*time.Second ||
		got.ReconcileInterval != 3*time.Second || got.LeaseMargin != 4*time.Second {
		t.Errorf("defaults < file < environment < flags: %s, %s, %s, %s; want 30s, 2s, 3s, 4s",
			got.ReportPeriod, got.ReapInterval, got.ReconcileInterval, got.LeaseMargin)
	}
	if got.MQTTUser != "file" {
		t.Errorf("an empty variable hides the file's value: %q", got.MQTTUser)
	}
}

func TestEmptyIsNone(t *testing.T) {
	t.Parallel()
	const file = "http_listen: ''\nlease_margin: null\nreap_interval: ~\nmqtt_url:\nadmin_token: null\n"
	got, err := Load([]byte(file), []string{"DISPATCHER_REPORT_PERIOD=", "DISPATCHER_FLEET_TOKEN_FILE="}, map[string]string{"migrate": ""})
	if err != nil || got.HTTPListen != ":8080" || got.LeaseMargin != 10*time.Second || got.ReapInterval != 5*time.Second ||
		got.ReportPeriod != 30*time.Second || got.Migrate != "on" {
		t.Errorf("%+v, %v; want the defaults", got, err)
	}
}

func TestFileWithZeroAndTwoTokens(t *testing.T) {
	t.Parallel()
	got, err := Load([]byte("lease_margin: 0\nfleet_token: first-fleet-token , second-fleet-token\n"), nil, nil)
	if err != nil || got.LeaseMargin != 0 {
		t.Fatalf("margin %s, %v", got.LeaseMargin, err)
	}
	if diff := cmp.Diff([]string{"first-fleet-token", "second-fleet-token"}, got.fleetTokens()); diff != "" {
		t.Error(diff)
	}
}

func TestKubernetesVariablesAreIgnored(t *testing.T) {
	t.Parallel()
	if _, err := Load(nil, []string{
		"DISPATCHER_PORT=tcp://10.0.0.1:8080", "DISPATCHER_PORT_8080_TCP_ADDR=10.0.0.1", "DISPATCHER_SERVICE_HOST=10.0.0.1",
		"DISPATCHER_SERVICE_PORT_HTTP=8080", "DISPATCHER_URL=http://x", "DISPATCHER_TOKEN=y", "OTHER=1", "dispatcher_x=1", "",
	}, nil); err != nil {
		t.Error(err)
	}
}

// brokenConfig is a configuration with an error. It also has the text that the error message must contain.
type brokenConfig struct {
	file    string
	environ []string
	flags   map[string]string
	want    string
}

func brokenConfigs(tb testing.TB) map[string]brokenConfig {
	tb.Helper()
	all := brokenSources(tb)
	maps.Copy(all, brokenValues())
	return all
}

// brokenSources returns configurations that cannot be read, or that do not contain valid settings.
func brokenSources(tb testing.TB) map[string]brokenConfig {
	tb.Helper()
	type set = []string
	return map[string]brokenConfig{
		"unknown key":              {file: "http_lisen: ':1'", want: "http_lisen"},
		"unknown variable":         {environ: set{"DISPATCHER_HTTP_LISEN=" + canary}, want: "DISPATCHER_HTTP_LISEN"},
		"variable in lower case":   {environ: set{"DISPATCHER_http_listen=:1"}, want: "DISPATCHER_http_listen"},
		"file of no secret":        {environ: set{"DISPATCHER_HTTP_LISTEN_FILE=/x"}, want: "DISPATCHER_HTTP_LISTEN_FILE"},
		"unknown flag":             {flags: map[string]string{"http-lisen": ":1"}, want: "--http-lisen"},
		"secret as a flag":         {flags: map[string]string{"admin-token": canary}, want: "--admin-token"},
		"value and file":           {environ: set{"DISPATCHER_ADMIN_TOKEN=" + canary, "DISPATCHER_ADMIN_TOKEN_FILE=" + writeTempFile(tb, canary)}, want: "DISPATCHER_ADMIN_TOKEN"},
		"file and value":           {environ: set{"DISPATCHER_ADMIN_TOKEN_FILE=" + writeTempFile(tb, canary), "DISPATCHER_ADMIN_TOKEN=" + canary}, want: "DISPATCHER_ADMIN_TOKEN"},
		"secret as its path":       {environ: set{"DISPATCHER_ADMIN_TOKEN_FILE=" + canary}, want: "DISPATCHER_ADMIN_TOKEN_FILE"},
		"unreadable file":          {environ: set{"DISPATCHER_FLEET_TOKEN_FILE=" + tb.TempDir()}, want: "DISPATCHER_FLEET_TOKEN_FILE"},
		"empty file":               {environ: set{"DISPATCHER_FLEET_TOKEN_FILE=" + writeTempFile(tb, " \n")}, want: "DISPATCHER_FLEET_TOKEN_FILE"},
		"file with a short token":  {environ: set{"DISPATCHER_FLEET_TOKEN_FILE=" + writeTempFile(tb, canary[:15])}, want: "fleet_token"},
		"environment file as YAML": {file: "DISPATCHER_ADMIN_TOKEN=" + canary, want: "configuration file"},
		"short scalar":             {file: canary[:9], want: "configuration file"},
		"list":                     {file: "- " + canary, want: "configuration file"},
		"anchor":                   {file: "admin_token: *" + canary, want: "configuration file"},
		"broken YAML":              {file: "http_listen: ':1'\nadmin_token: '" + canary, want: "configuration file: line"},
		"tab":                      {file: "http_listen: ':1'\n\tadmin_token: " + canary, want: "configuration file: line"},
		"key twice":                {file: "admin_token: a\nadmin_token: " + canary, want: "configuration file"},
		"nested":                   {file: "admin_token:\n  value: " + canary, want: "admin_token"},
		"list of tokens":           {file: "fleet_token:\n  - " + canary, want: "fleet_token"},
		"number":                   {file: "lease_margin: 10", want: "lease_margin"},
		"number as token":          {file: "admin_token: 1234567890123456", want: "admin_token"},
		"large number as token":    {file: "admin_token: 12345678901234567890123", want: "admin_token"},
		"boolean":                  {file: "migrate: true", want: "migrate"},
		"date":                     {file: "mqtt_user: 2026-01-02", want: "mqtt_user"},
		"binary":                   {file: "admin_token: !!binary aGVsbG8=\nx: 1", want: "x"},
		"number key":               {file: "1: x", want: "configuration file"},
	}
}

// brokenValues returns configurations whose settings are out of range or contradict each other.
func brokenValues() map[string]brokenConfig {
	type set = []string
	return map[string]brokenConfig{
		"no duration":             {environ: set{"DISPATCHER_REAP_INTERVAL=5"}, want: "reap_interval"},
		"short interval":          {environ: set{"DISPATCHER_REAP_INTERVAL=1ms"}, want: "reap_interval"},
		"long interval":           {environ: set{"DISPATCHER_RECONCILE_INTERVAL=1h"}, want: "reconcile_interval"},
		"negative margin":         {environ: set{"DISPATCHER_LEASE_MARGIN=-1s"}, want: "lease_margin"},
		"a negative rate":         {environ: set{"DISPATCHER_REPORT_RATE=-1"}, want: "report_rate: must be a whole number between 0 and 1000"},
		"no burst":                {environ: set{"DISPATCHER_REPORT_BURST=0"}, want: "report_burst: must be a whole number between 1 and 10000"},
		"no share":                {environ: set{"DISPATCHER_URGENT_SHARE=0%"}, want: "urgent_share: must be a whole percentage between 1% and 100%"},
		"more than all":           {environ: set{"DISPATCHER_URGENT_SHARE=101%"}, want: "urgent_share"},
		"a share of what":         {environ: set{"DISPATCHER_URGENT_SHARE=0.1"}, want: "urgent_share"},
		"no whole rate":           {environ: set{"DISPATCHER_REGISTRATION_RATE=0.5"}, want: "registration_rate: must be a whole number between 0 and 1000000"},
		"no registration burst":   {environ: set{"DISPATCHER_REGISTRATION_BURST=0"}, want: "registration_burst: must be a whole number between 1 and 1000000"},
		"no least lease":          {environ: set{"DISPATCHER_LEASE_MIN=0s"}, want: "lease_min"},
		"short period":            {environ: set{"DISPATCHER_REPORT_PERIOD=0s"}, want: "report_period"},
		"mode":                    {environ: set{"DISPATCHER_FLEET_TOKEN_MODE=all"}, want: "fleet_token_mode"},
		"migrate":                 {environ: set{"DISPATCHER_MIGRATE=no"}, want: "migrate"},
		"format":                  {environ: set{"DISPATCHER_LOG_FORMAT=xml"}, want: "log_format"},
		"level":                   {environ: set{"DISPATCHER_LOG_LEVEL=loud"}, want: "log_level"},
		"short admin token":       {environ: set{"DISPATCHER_ADMIN_TOKEN=" + canary[:15]}, want: "admin_token"},
		"second token short":      {environ: set{"DISPATCHER_FLEET_TOKEN=" + canary + "," + canary[:9]}, want: "fleet_token"},
		"three fleet tokens":      {environ: set{"DISPATCHER_FLEET_TOKEN=" + canary + "," + canary + "2," + canary + "3"}, want: "fleet_token"},
		"fleet as admin":          {environ: set{"DISPATCHER_FLEET_TOKEN=" + canary, "DISPATCHER_ADMIN_TOKEN=" + canary}, want: "fleet_token"},
		"certificate without key": {environ: set{"DISPATCHER_TLS_CERT_FILE=x"}, want: "tls_key_file"},
		"no accounts like that":   {environ: set{"DISPATCHER_MQTT_PROVISION=acl"}, want: "mqtt_provision"},
		"accounts and no broker":  {environ: set{"DISPATCHER_MQTT_PROVISION=dynsec"}, want: "mqtt_url"},
		"accounts, no password":   {environ: set{"DISPATCHER_MQTT_PROVISION=dynsec", "DISPATCHER_MQTT_URL=mqtt://b", "DISPATCHER_MQTT_USER=_d"}, want: "mqtt_password"},
		"a device's name":         {environ: set{"DISPATCHER_MQTT_PROVISION=dynsec", "DISPATCHER_MQTT_URL=mqtt://b", "DISPATCHER_MQTT_USER=d", "DISPATCHER_MQTT_PASSWORD=p"}, want: "mqtt_user"},
		"key without certificate": {environ: set{"DISPATCHER_MQTT_KEY_FILE=x"}, want: "mqtt_cert_file"},
		"password in the URL":     {environ: set{"DISPATCHER_MQTT_URL=mqtt://user:" + canary + "@broker"}, want: "mqtt_url"},
		"password without scheme": {environ: set{"DISPATCHER_MQTT_URL=user:" + canary + "@broker"}, want: "mqtt_url"},
		"broken broker URL":       {environ: set{"DISPATCHER_MQTT_URL=mqtt://user:%" + canary + "@broker"}, want: "mqtt_url"},
		"DSN without a key":       {environ: set{"DISPATCHER_POSTGRES_DSN=" + canary}, want: "postgres_dsn"},
		"DSN of another scheme":   {environ: set{"DISPATCHER_POSTGRES_DSN=postgre://u:" + canary + "@h/d?sslmode=disable"}, want: "postgres_dsn"},
		"DSN with a raw password": {environ: set{"DISPATCHER_POSTGRES_DSN=postgres://u:" + canary + "/%zz@h/d"}, want: "postgres_dsn"},
		"Redis URL":               {environ: set{"DISPATCHER_REDIS_URL=" + canary}, want: "redis_url"},
		"proxy by name":           {environ: set{"DISPATCHER_TRUSTED_PROXIES=10.0.0.1, proxy.example"}, want: "trusted_proxies: entry 2"},
		"network of no size":      {file: "trusted_proxies: 10.0.0.0/33", want: "trusted_proxies: entry 1"},
		"Redis URL, bad password": {environ: set{"DISPATCHER_REDIS_URL=redis://:" + canary + "/%@h"}, want: "redis_url"},
	}
}

func TestBrokenConfigurationsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for name, c := range brokenConfigs(t) {
		_, err := Load([]byte(c.file), c.environ, c.flags)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || leaksCanary(text) || len(text) > 300 {
			t.Errorf("%s: %q; want it short, to name %q and to hold no secret", name, text, c.want)
		}
	}
}

func TestEveryMistakeIsNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Load(nil, []string{"DISPATCHER_REAP_INTERVAL=1ms", "DISPATCHER_MIGRATE=maybe", "DISPATCHER_ADMIN_TOKEN=short"}, nil)
	for _, want := range []string{"reap_interval", "migrate", "admin_token"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

func TestLoggedConfigurationHoldsNoSecret(t *testing.T) {
	t.Parallel()
	environ := []string{"DISPATCHER_MQTT_URL=mqtt://broker", "DISPATCHER_LEASE_MARGIN=7s"}
	for _, s := range Settings() {
		switch {
		case s.Key == "postgres_dsn":
			environ = append(environ, s.Env()+"=postgres://u:"+canary+"@h/d")
		case s.Key == "redis_url":
			environ = append(environ, s.Env()+"=redis://:"+canary+"@h")
		case s.Secret && s.Key != "admin_token":
			environ = append(environ, s.Env()+"="+canary)
		}
	}
	config, err := Load(nil, environ, nil)
	must.Succeed(t, err)
	for _, handler := range []func(*bytes.Buffer) slog.Handler{
		func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Info("configuration", "settings", config)
		if text := b.String(); leaksCanary(text) || strings.Count(text, redacted) != 5 || !strings.Contains(text, "mqtt://broker") || !strings.Contains(text, "lease_margin") {
			t.Errorf("logged: %s", text)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for _, c := range brokenConfigs(f) {
		f.Add([]byte(c.file), strings.Join(c.environ, "\n"))
	}
	f.Add([]byte("http_listen: ':1'\nlease_margin: 0\nmigrate: off\n"), "DISPATCHER_LOG_LEVEL=debug\nDISPATCHER_SERVICE_HOST=x")
	f.Add([]byte("a: &a [*a]"), "=")
	f.Add([]byte("? {a: b}\n: c\n---\nx"), "DISPATCHER_")
	f.Fuzz(func(t *testing.T, file []byte, environ string) {
		var values []string
		for entry := range strings.SplitSeq(environ, "\n") {
			if name, _, _ := strings.Cut(entry, "="); !strings.HasSuffix(name, "_FILE") { // do not read files of this machine
				values = append(values, entry)
			}
		}
		config, err := Load(file, values, nil)
		if err != nil {
			return
		}
		if err := config.Validate(); err != nil {
			t.Errorf("loaded, and not valid: %v", err)
		}
		if config.HTTPListen == "" || config.ReapInterval < time.Second || len(config.fleetTokens()) > 2 {
			t.Errorf("loaded: %+v", config)
		}
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "settings", config)
		for _, secret := range append(config.fleetTokens(), config.AdminToken) {
			if len(secret) >= minTokenLength && !overlaps(config, secret) && strings.Contains(b.String(), secret) {
				t.Errorf("the log shows a secret")
			}
		}
	})
}

// overlaps reports whether the secret is also part of the value of a setting that is not secret. Then a message may
// contain it.
func overlaps(c Config, secret string) bool {
	for _, s := range []string{c.MQTTURL, c.MQTTUser, c.HTTPListen, c.OperatorListen, c.TLSCertFile, c.TLSKeyFile, c.TrustedProxies, c.Retention, c.MQTTCAFile, c.MQTTCertFile, c.MQTTKeyFile} {
		if strings.Contains(s, secret) {
			return true
		}
	}
	return false
}
