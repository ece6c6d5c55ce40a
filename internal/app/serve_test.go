package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// serveConfig returns the configuration of a dispatcher that uses these servers. settings are further settings in
// the form variable=value. The reports of a device are not limited, because tests let devices report until something happens.
func serveConfig(t *testing.T, dsn, redisURL string, settings ...string) Config {
	t.Helper()
	environ := append([]string{
		"DISPATCHER_POSTGRES_DSN=" + dsn, "DISPATCHER_REDIS_URL=" + redisURL, "DISPATCHER_HTTP_LISTEN=127.0.0.1:0",
		"DISPATCHER_ADMIN_TOKEN=" + adminToken, "DISPATCHER_FLEET_TOKEN=" + fleetToken, "DISPATCHER_REPORT_RATE=0",
	}, settings...)
	config, err := Load(nil, environ, nil)
	must.Succeed(t, err)
	return config
}

// startServing runs a replica. When it returns, the replica listens on its address.
func startServing(t *testing.T, config Config) (*instance, *App) {
	t.Helper()
	a, err := newServerApp(t.Context(), config, discardLogger(), "test")
	must.Succeed(t, err)
	return startApp(t, a), a
}

// startApp runs an app and waits until its API answers. While the app starts, a handler answers that the app is not ready.
func startApp(t *testing.T, a *App) *instance {
	t.Helper()
	i := startInstance(t, instance{url: "http://" + a.Addr(), admin: adminToken, fleet: fleetToken}, func(ctx context.Context, started func()) error {
		started()
		return a.run(ctx)
	})
	await.True(t, "started", func() bool {
		_, body := i.call(t, http.MethodGet, "/readyz", "", "")
		return !bytes.Contains(body, []byte(`"starting"`))
	})
	return i
}

// exchangeTask creates a pool with a task. A device takes this task at the first replica (one) and sends its
// result to the second replica (other).
func exchangeTask(t *testing.T, one, other *instance) {
	t.Helper()
	one.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	one.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"p","kind":"k","devices":["a"]}`)
	reply := one.sendReport(t, "a", `{"id":"1"}`)
	if reply.Task == nil {
		t.Fatalf("%+v, want a grant", reply)
	}
	reply = other.sendReport(t, "a", fmt.Sprintf(`{"id":"2","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, reply.Task.ID, reply.Task.Token))
	if len(reply.Acks) != 1 || reply.Acks[0].Outcome != devices.OutcomeRecorded {
		t.Fatalf("%+v, want the result recorded", reply)
	}
}

func TestServeWithABroker(t *testing.T) {
	t.Parallel()
	broker := servers.StartMosquitto(t)
	config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(), "DISPATCHER_MQTT_URL="+broker.URL)
	config.FleetToken = "" // a fleet token would admit unknown devices
	i, _ := startServing(t, config)
	waitForBroker(t, i)
	m := newMQTTDevice(t, &DevServer{MQTTURL: broker.URL}, "stranger")
	if reply := m.sendReport(t, `{"id":"1"}`); reply.Reason != devices.ReasonForbidden {
		t.Errorf("an unknown device: %+v, want forbidden", reply)
	}
	m.Publish("fleet/v1/-no-device-/report", 1, false, "{}")
	await.True(t, "what was dropped is counted", func() bool {
		return bytes.Contains(i.callOperator(t, http.MethodGet, "/metrics", ""), []byte(`dispatcher_reports_total{reason="bad_topic",transport="mqtt"} 1`+"\n"))
	})
	i.callOperator(t, http.MethodPost, "/v1/devices", `{"id":"meter"}`)
	if reply := newMQTTDevice(t, &DevServer{MQTTURL: broker.URL}, "meter").sendReport(t, `{"id":"1"}`); reply.Reason != devices.ReasonNone {
		t.Errorf("a known device: %+v, want none", reply)
	}
}

func TestServeNeedsBothServers(t *testing.T) {
	t.Parallel()
	for missing, config := range map[string]Config{"redis_url": {PostgresDSN: "x"}, "postgres_dsn": {RedisURL: "x"}, "postgres_dsn, redis_url": {}} {
		err := Serve(t.Context(), config, discardLogger(), "test")
		if err == nil || !strings.Contains(err.Error(), "missing: "+missing+";") {
			t.Errorf("%v, want an error that names %s", err, missing)
		}
	}
}

func TestServeRefusesAServerThatLosesCommits(t *testing.T) {
	t.Parallel()
	dsn := sharedPostgres.NewLedger(t)
	config := serveConfig(t, dsn+"&synchronous_commit=off", "redis://127.0.0.1:1")
	err := Serve(t.Context(), config, discardLogger(), "test")
	if err == nil || !strings.Contains(err.Error(), "synchronous_commit") {
		t.Errorf("%v, want an error that names synchronous_commit", err)
	}
}

func TestServeWithoutMigrations(t *testing.T) {
	t.Parallel()
	dsn, redis := sharedPostgres.NewDatabase(t), servers.StartRedis(t).URL()
	off := serveConfig(t, dsn, redis, "DISPATCHER_MIGRATE=off")
	if err := Serve(t.Context(), off, discardLogger(), "test"); err == nil || !strings.Contains(err.Error(), "dispatcher migrate up") {
		t.Fatalf("empty database: %v; want an error that says what to do", err)
	}
	i, _ := startServing(t, serveConfig(t, dsn, redis))
	must.Succeed(t, i.stop())
	i, _ = startServing(t, off)
	exchangeTask(t, i, i)
}

func TestReplicasStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL())
	apps, errs := make([]*App, 2), make([]error, 2)
	var wait sync.WaitGroup
	for n := range apps {
		wait.Go(func() { apps[n], errs[n] = newServerApp(context.Background(), config, discardLogger(), "test") })
	}
	wait.Wait()
	replicas := make([]*instance, len(apps))
	for n, a := range apps {
		if errs[n] != nil {
			t.Fatalf("replica %d: %v", n, errs[n])
		}
		replicas[n] = startApp(t, a)
	}
	exchangeTask(t, replicas[0], replicas[1])
}

// messageWatch is a log handler that signals when a certain message was logged.
type messageWatch struct {
	slog.Handler
	message string
	once    sync.Once
	logged  chan struct{}
}

func newMessageWatch(message string) *messageWatch {
	return &messageWatch{Handler: slog.DiscardHandler, message: message, logged: make(chan struct{})}
}

func (h *messageWatch) Enabled(context.Context, slog.Level) bool { return true }

func (h *messageWatch) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.once.Do(func() { close(h.logged) })
	}
	return nil
}

func TestWaitingForPostgresEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	log, ended := newMessageWatch("waiting for Postgres"), make(chan error, 1)
	config := serveConfig(t, "postgres://u:"+canary+"@"+servers.FreeAddr(t)+"/x?sslmode=disable", "redis://127.0.0.1:1")
	go func() { ended <- Serve(ctx, config, slog.New(log), "test") }()
	<-log.logged
	cancel()
	err := await.Receive(t, ended, "still waiting")
	if err == nil || leaksCanary(err.Error()) {
		t.Errorf("%v, want an error without the password", err)
	}
}

func TestOperatorsHaveAnAddressOfTheirOwn(t *testing.T) {
	t.Parallel()
	i, a := startServing(t, serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(), "DISPATCHER_OPERATOR_LISTEN=127.0.0.1:0"))
	operators := &instance{url: "http://" + a.servers[1].listener.Addr().String(), admin: adminToken, fleet: fleetToken}
	operators.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	for path, want := range map[string]struct{ device, operator int }{
		"/healthz": {200, 200}, "/readyz": {200, 200},
		"/metrics": {404, 200}, "/openapi.json": {404, 200}, "/v1/pools/p": {404, 200}, "/v1/pools/p/slots": {404, 200},
		"/v1/tasks": {404, 200}, "/v1/batches/1": {404, 404},
	} {
		device, _ := i.call(t, http.MethodGet, path, adminToken, "")
		operator, _ := operators.call(t, http.MethodGet, path, adminToken, "")
		if device != want.device || operator != want.operator {
			t.Errorf("%s: %d at the devices' address, %d at the operators'; want %d and %d", path, device, operator, want.device, want.operator)
		}
	}
	if reply := i.sendReport(t, "a", `{"id":"1"}`); reply.Reason != devices.ReasonNone {
		t.Errorf("a report at the devices' address: %+v", reply)
	}
}

func TestTakenAddressFailsAtOnce(t *testing.T) {
	t.Parallel()
	address := occupiedAddr(t)
	for _, name := range []string{"DISPATCHER_HTTP_LISTEN", "DISPATCHER_OPERATOR_LISTEN"} {
		config := serveConfig(t, "postgres://127.0.0.1:1/x", "redis://127.0.0.1:1", name+"="+address)
		_, err := newServerApp(t.Context(), config, discardLogger(), "test")
		if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), strings.ToLower(name[len(envPrefix):])) {
			t.Errorf("%s in use: %v; want an error that names it", name, err)
		}
	}
}

func TestServeWithTLS(t *testing.T) {
	t.Parallel()
	certificate, key, roots := selfSigned(t)
	config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL(),
		"DISPATCHER_TLS_CERT_FILE="+certificate, "DISPATCHER_TLS_KEY_FILE="+key)
	_, a := startServing(t, config)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	await.True(t, "answered over TLS", func() bool { // begin would poll without TLS
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+a.Addr()+"/v1/devices/a/report", strings.NewReader(`{"id":"1"}`))
		must.Succeed(t, err)
		request.Header.Set("Authorization", "Bearer "+fleetToken)
		response, err := client.Do(request)
		must.Succeed(t, err)
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	if response, err := http.Get("http://" + a.Addr() + "/healthz"); err == nil {
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("answered without TLS")
		}
	}
	config.TLSKeyFile = certificate
	if _, err := newServerApp(t.Context(), config, discardLogger(), "test"); err == nil || !strings.Contains(err.Error(), "tls_key_file") {
		t.Errorf("no key in the file: %v; want an error that names tls_key_file", err)
	}
}

// selfSigned writes a certificate for the loopback address, and its key, into files.
func selfSigned(t *testing.T) (certificate, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Succeed(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must.Succeed(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must.Succeed(t, err)
	files := make(map[string]string)
	for kind, content := range map[string][]byte{"CERTIFICATE": public, "PRIVATE KEY": secret} {
		files[kind] = filepath.Join(t.TempDir(), "pem")
		must.Succeed(t, os.WriteFile(files[kind], pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600))
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(public)
	must.Succeed(t, err)
	roots.AddCert(parsed)
	return files["CERTIFICATE"], files["PRIVATE KEY"], roots
}

// TestFailedListenerEndsTheProcess checks a listener that fails: the process ends with the listener's error.
func TestFailedListenerEndsTheProcess(t *testing.T) {
	t.Parallel()
	a, err := newServerApp(t.Context(), serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL()), discardLogger(), "test")
	must.Succeed(t, err)
	ended := make(chan error, 1)
	go func() { ended <- a.run(context.Background()) }()
	a.servers[0].listener.Close()
	err = await.Receive(t, ended, "goes on without its listener")
	if err == nil || !strings.Contains(err.Error(), a.Addr()) {
		t.Errorf("%v, want an error that names the address", err)
	}
}

// TestAnswersWhileItWaitsForPostgres checks a process that starts while Postgres is not reachable: it reports at
// once that it is alive and not ready, and devices are asked to report again later.
func TestAnswersWhileItWaitsForPostgres(t *testing.T) {
	t.Parallel()
	server := servers.StartPostgres(t)
	dsn := server.NewDatabase(t)
	server.Stop()
	config := serveConfig(t, dsn, servers.StartRedis(t).URL())
	config.HTTPListen = servers.FreeAddr(t)
	i := &instance{url: "http://" + config.HTTPListen, admin: adminToken, fleet: fleetToken}
	log, ready := newMessageWatch("waiting for Postgres"), make(chan *App, 1)
	go func() {
		a, err := newServerApp(context.Background(), config, slog.New(log), "test")
		if err != nil {
			t.Errorf("Postgres came up, and: %v", err)
		}
		ready <- a
	}()
	<-log.logged
	if status, body := i.call(t, http.MethodGet, "/healthz", "", ""); status != http.StatusOK {
		t.Errorf("healthz: %d %s", status, body)
	}
	if status, body := i.call(t, http.MethodGet, "/readyz", "", ""); status != http.StatusServiceUnavailable || !bytes.Contains(body, []byte(`"postgres":"failed"`)) {
		t.Errorf("readyz: %d %s, want 503 that names postgres", status, body)
	}
	response, err := http.Post(i.url+"/v1/devices/d/report", "application/json", strings.NewReader(`{}`))
	must.Succeed(t, err)
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" ||
		response.Header.Get("Content-Type") != "application/problem+json" || !bytes.Contains(body, []byte(`"report_after_ms"`)) {
		t.Errorf("report: %d %v %s, want a problem that says when to come back", response.StatusCode, response.Header, body)
	}
	server.Start()
	startApp(t, <-ready)
	if status, body := i.call(t, http.MethodGet, "/readyz", "", ""); status != http.StatusOK || !bytes.Contains(body, []byte(`"redis":"ok"`)) {
		t.Errorf("with Postgres: %d %s, want ready", status, body)
	}
}
