package simulator

import (
	"context"
	"errors"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
)

// admissionTimeout is the time limit of checkAdmission. When it has passed, the run starts without a result of the check,
// because devices retry.
const admissionTimeout = 5 * time.Second

var (
	errHTTPRefused = errors.New("the dispatcher refuses the devices' credentials: check that DISPATCHER_FLEET_TOKEN is its fleet token; if the devices have their own tokens, use --credentials own")
	errMQTTRefused = errors.New("the broker refuses the devices' credentials: check that it has accounts for them, and that DISPATCHER_FLEET_TOKEN is their password")
)

// checkAdmission returns an error if the server refuses the credentials of the first device. Without this check, a fleet
// whose credentials are refused would run to the end without doing any task.
func (c Config) checkAdmission(ctx context.Context, tokens []string) error {
	ctx, cancel := context.WithTimeout(ctx, admissionTimeout)
	defer cancel()
	device, token := deviceID(c.DevicePrefix, 0), c.FleetToken
	if len(tokens) > 0 {
		token = tokens[0]
	}
	overHTTP, overMQTT := c.Via.needsTransports()
	if overHTTP {
		link := newHTTPLink(newHTTPClient(1), newReplicaURLs(c.URL, 0), device, token)
		defer link.client.CloseIdleConnections()
		base, _ := link.replicas.current()
		if a := link.postReport(ctx, base+link.path, outgoingReport{body: []byte(`{"accept":false}`)}); a.kind == forbidden {
			return errHTTPRefused
		}
	}
	if overMQTT && newMQTTLink(c.MQTTURL, device, token, 0).isRefusedByBroker(ctx) {
		return errMQTTRefused
	}
	return nil
}

// isRefusedByBroker reports whether the broker refuses the device because of its credentials.
func (l *mqttLink) isRefusedByBroker(ctx context.Context) bool {
	network, err := l.dialBroker(ctx)
	if err != nil {
		return false
	}
	defer network.Close()
	client := paho.NewClient(l.pahoOptions(network))
	defer client.Disconnect(hangUpTimeout)
	asked := client.Connect()
	if waitSuccess(ctx, asked) {
		return false
	}
	answer, ok := asked.(*paho.ConnectToken)
	if !ok {
		return false
	}
	code := answer.ReturnCode()
	return code == packets.ErrRefusedBadUsernameOrPassword || code == packets.ErrRefusedNotAuthorised
}
