package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/operators"
)

// healthcheckCommand returns the command healthcheck. Containers without a shell use this command as their health check.
func healthcheckCommand() *cobra.Command {
	var url string
	command := &cobra.Command{
		Use:   "healthcheck",
		Short: "Exit 0 when the dispatcher is ready, 1 when not",
		Long: `Exit 0 when the dispatcher is ready, 1 when not.

Without a URL it asks the dispatcher that runs with the same environment, at
DISPATCHER_HTTP_LISTEN. If DISPATCHER_TLS_CERT_FILE is set, that dispatcher must
present this certificate. In an environment without a database it asks the
dispatcher dev that runs here, if there is one.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var transport http.RoundTripper
			if url == "" {
				config, err := app.Load(nil, os.Environ(), nil)
				if err == nil {
					url, transport, err = findLocalServer(config)
				}
				if err != nil {
					return usageError{err}
				}
			}
			return checkReady(cmd.Context(), strings.TrimSuffix(url, "/"), transport)
		},
	}
	command.Flags().StringVar(&url, "url", os.Getenv("DISPATCHER_URL"), "URL of the dispatcher (DISPATCHER_URL)")
	return command
}

// checkReady returns an error unless the dispatcher at url is ready. A nil transport means the default transport.
func checkReady(ctx context.Context, url string, transport http.RoundTripper) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return usageError{fmt.Errorf("--url: %w", err)}
	}
	response, err := (&http.Client{Timeout: 3 * time.Second, Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: HTTP %d", response.StatusCode)
	}
	return nil
}

// findLocalServer returns the URL of the dispatcher to check, and the transport for this URL. If the environment configures no database and
// a `dispatcher dev` runs on this machine, this is the `dispatcher dev`. Otherwise it is the `dispatcher serve` that runs with config.
func findLocalServer(config app.Config) (url string, transport http.RoundTripper, err error) {
	if dev, err := localDevConfig(operators.Config{}); err == nil && config.PostgresDSN == "" {
		return dev.URL, nil, nil
	}
	return localURLAndTransport(config.HTTPListen, config.TLSCertFile)
}

// localURLAndTransport returns the URL by which a dispatcher with these settings is reached from its own
// machine, and the transport for it. A nil transport means the default transport.
func localURLAndTransport(listenAddr, certFile string) (url string, transport http.RoundTripper, err error) {
	host, port, err := net.SplitHostPort(listenAddr)
	if err != nil {
		return "", nil, fmt.Errorf("http_listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	address := net.JoinHostPort(host, port)
	if certFile == "" {
		return "http://" + address, nil, nil
	}
	content, err := os.ReadFile(certFile)
	if err != nil {
		return "", nil, fmt.Errorf("tls_cert_file: %w", err)
	}
	return "https://" + address, &http.Transport{TLSClientConfig: pinnedTLSConfig(content)}, nil
}

// pinnedTLSConfig returns a TLS configuration that trusts only the certificates in certificate and the certificates that they signed. It
// ignores the names in a certificate, because they do not include the loopback address.
func pinnedTLSConfig(certificate []byte) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection verifies instead
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the server sent no certificate")
			}
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
	}
}
