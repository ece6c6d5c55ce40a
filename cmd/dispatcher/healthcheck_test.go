package main

import (
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// The healthcheck uses only the settings of the dispatcher, as it does in the container.
func TestHealthcheckFollowsTheSettings(t *testing.T) {
	t.Parallel()
	answer := func(status int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/readyz" {
				w.WriteHeader(status)
			}
		})
	}
	plain, unready := httptest.NewServer(answer(http.StatusOK)), httptest.NewServer(answer(http.StatusServiceUnavailable))
	secure := httptest.NewUnstartedServer(answer(http.StatusOK))
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	secure.StartTLS()
	for _, server := range []*httptest.Server{plain, unready, secure} {
		t.Cleanup(server.Close)
	}
	certificate := filepath.Join(t.TempDir(), "certificate.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	must.Succeed(t, os.WriteFile(certificate, content, 0o600))
	other := filepath.Join(t.TempDir(), "other.pem")
	must.Succeed(t, os.WriteFile(other, []byte("of somebody else"), 0o600))
	at := func(server *httptest.Server) string {
		_, port, _ := strings.Cut(server.Listener.Addr().String(), ":")
		return "DISPATCHER_HTTP_LISTEN=:" + port
	}
	with := func(file string) string { return "DISPATCHER_TLS_CERT_FILE=" + file }
	const key = "DISPATCHER_TLS_KEY_FILE=not-read"
	for name, c := range map[string]struct {
		environ []string
		code    int
	}{
		"ready":               {[]string{at(plain)}, 0},
		"not ready":           {[]string{at(unready)}, 1},
		"with TLS":            {[]string{at(secure), with(certificate), key}, 0},
		"another certificate": {[]string{at(secure), with(other), key}, 1},
		"TLS expected":        {[]string{at(plain), with(certificate), key}, 1},
		"no certificate file": {[]string{at(secure), with("/none"), key}, 2},
		"misspelt":            {[]string{"DISPATCHER_HTTP_LISEN=x"}, 2},
		"no port":             {[]string{"DISPATCHER_HTTP_LISTEN=x"}, 2},
	} {
		if code, _, stderr := runProgram(t, c.environ, "healthcheck"); code != c.code {
			t.Errorf("%s: exit %d, want %d: %s", name, code, c.code, stderr)
		}
	}
}
