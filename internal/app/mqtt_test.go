package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

type nilHandler struct{ devices.Handler }

// TestBrokerWithTLS checks TLS between the dispatcher and its broker: each of them presents a certificate and
// verifies the certificate of the other side.
func TestBrokerWithTLS(t *testing.T) {
	t.Parallel()
	serverCert, serverKey, _ := selfSigned(t)
	clientCert, clientKey, _ := selfSigned(t)
	plain, secure := servers.StartMosquittoTLS(t, serverCert, serverKey, clientCert)
	for name, test := range map[string]struct {
		config    Config
		connected bool
	}{
		"both":                      {Config{MQTTURL: secure, MQTTCAFile: serverCert, MQTTCertFile: clientCert, MQTTKeyFile: clientKey}, true},
		"an unknown broker":         {Config{MQTTURL: secure, MQTTCertFile: clientCert, MQTTKeyFile: clientKey}, false},
		"another authority":         {Config{MQTTURL: secure, MQTTCAFile: clientCert, MQTTCertFile: clientCert, MQTTKeyFile: clientKey}, false},
		"no certificate":            {Config{MQTTURL: secure, MQTTCAFile: serverCert}, false},
		"a certificate of nobody's": {Config{MQTTURL: secure, MQTTCAFile: serverCert, MQTTCertFile: serverCert, MQTTKeyFile: serverKey}, false},
		"TLS without being asked":   {Config{MQTTURL: strings.Replace(secure, "mqtts", "mqtt", 1)}, false},
		"no TLS there":              {Config{MQTTURL: strings.Replace(plain.URL, "mqtt", "mqtts", 1), MQTTCAFile: serverCert}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, err := test.config.BrokerOptions()
			must.Succeed(t, err)
			failed := newMessageWatch("no connection to the MQTT broker; retrying")
			options.Handler, options.Logger = nilHandler{}, slog.New(failed)
			client, err := mqtt.New(options)
			must.Succeed(t, err)
			must.Succeed(t, client.Start(t.Context()))
			defer func() {
				if err := client.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			await.True(t, "an end of the attempt", func() bool {
				select {
				case <-failed.logged:
					return true
				default:
					return client.Connected()
				}
			})
			if client.Connected() != test.connected {
				t.Errorf("connected %t, want %t", !test.connected, test.connected)
			}
		})
	}
}

func TestWrongFilesForTheBrokerAreNamed(t *testing.T) {
	t.Parallel()
	certificate, key, _ := selfSigned(t)
	for want, config := range map[string]Config{
		"mqtt_ca_file: open":      {MQTTCAFile: t.TempDir() + "/none"},
		"contains no certificate": {MQTTCAFile: key},
		"mqtt_key_file":           {MQTTCertFile: certificate, MQTTKeyFile: certificate},
	} {
		if _, err := config.BrokerOptions(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
