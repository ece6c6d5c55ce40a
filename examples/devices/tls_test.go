package devices_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// newCertificate returns the settings of a TLS server on the loopback, and the path of its certificate, for --ca-file.
func newCertificate(t *testing.T) (config *tls.Config, path string) {
	t.Helper()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	path = filepath.Join(t.TempDir(), "ca.pem")
	must.Succeed(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	return &tls.Config{Certificates: server.TLS.Certificates}, path //nolint:gosec // a test server
}

// checkCertificate checks that a program sends nothing to a server whose certificate it does not know, and tries again.
func checkCertificate(t *testing.T, program deviceProgram, command []string, tokenFile string) {
	t.Helper()
	config, _ := newCertificate(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	device := &deviceProcess{command: program.start(command, program.transport+"s://"+listener.Addr().String(), "box", tokenFile, filepath.Join(t.TempDir(), "journal"))}
	device.onFailure = func(problem string) { t.Errorf("it %s: %s", problem, device.outputEnd()) }
	defer device.end()
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	device.start()
	for range 2 {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatalf("no attempt: %v", device.outputEnd())
		}
		if n := readSome(conn); n > 0 {
			t.Errorf("it sent %d bytes to a server that it does not know", n)
		}
	}
}

// readSome returns the number of bytes that arrive first. A failed handshake counts as 0.
func readSome(conn net.Conn) int {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	n, _ := conn.Read(make([]byte, 1))
	return n
}
