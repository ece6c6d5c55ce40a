package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/dynsec"
	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// checkBroker tests connections to the broker: with the dispatcher's account, without an account, and with the account of a device.
// runningReplicas is the number of running replicas, or replicasUnknown.
func (p Installation) checkBroker(ctx context.Context, runningReplicas int) []Finding {
	if p.Config.MQTTURL == "" {
		return []Finding{{Check: "broker", State: OK, Found: "none: devices use HTTP"}}
	}
	options, err := p.Config.BrokerOptions()
	if err != nil {
		return []Finding{{"broker", Failed, err.Error(), "correct the settings of MQTT"}}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	b := brokerConnector{options: options, topic: devices.ReplyTopic(devices.ID("doctor-" + strings.ToLower(rand.Text()[:8])))}
	dispatcherClient, err := b.connect(ctx, brokerAccount{"dispatcher-doctor-" + rand.Text()[:8], options.User, options.Password})
	if err != nil {
		return []Finding{{"broker", Failed, err.Error(), "start it, or correct mqtt_url, mqtt_user, mqtt_password, mqtt_ca_file; see deploy/mosquitto"}}
	}
	defer dispatcherClient.Disconnect(0)
	list := []Finding{{Check: "broker", State: OK, Found: "accepts the dispatcher as " + options.User}}
	list = append(list, checkSharedSubscription(ctx, dispatcherClient, runningReplicas), checkAnonymousAccess(ctx, b, dispatcherClient), p.checkRights(ctx, options))
	return append(list, p.checkDeviceRules(ctx, b, dispatcherClient))
}

// checkSharedSubscription tests whether the dispatcher's account may subscribe to the reports of devices. If replicas run or may run, there is
// no test, because the test subscription would take reports from them.
func checkSharedSubscription(ctx context.Context, dispatcherClient paho.Client, runningReplicas int) Finding {
	f := Finding{Check: "broker subscription", State: OK, Found: "the dispatcher may subscribe to the reports of devices"}
	if runningReplicas == replicasUnknown {
		return Finding{f.Check, Unknown, "not checked: a test subscription could take reports from running replicas; their number is unknown", "repair postgres first"}
	}
	if runningReplicas > 0 {
		f.State, f.Found = Unknown, fmt.Sprintf("not checked: a test subscription would take reports from the %d running replicas", runningReplicas)
		f.Remedy = "`mqtt` at /readyz of each replica shows whether it is subscribed"
		return f
	}
	filter := devices.SharedReportFilter(devices.DefaultGroup)
	if err := subscribe(ctx, dispatcherClient, filter, nil); err != nil {
		f.State, f.Found = Failed, err.Error()
		f.Remedy = "let the dispatcher's account subscribe to " + filter + ": see deploy/mosquitto"
		return f
	}
	_ = waitForOperation(ctx, dispatcherClient.Unsubscribe(filter)) // an error does not matter, because the connection ends soon
	return f
}

// checkAnonymousAccess tests whether a client without an account can connect, and whether this client then receives messages for devices. It
// sends such a message with dispatcherClient.
func checkAnonymousAccess(ctx context.Context, connector brokerConnector, dispatcherClient paho.Client) Finding {
	f := Finding{Check: "broker without an account", State: OK, Found: "clients without an account are refused"}
	anonymousClient, err := connector.connect(ctx, brokerAccount{id: "doctor-" + rand.Text()[:8]})
	if err != nil {
		return f
	}
	defer anonymousClient.Disconnect(0)
	f.State, f.Found, f.Remedy = Warning, "clients without an account are accepted", "set allow_anonymous false"
	topics := make(chan string, 1)
	if subscribe(ctx, anonymousClient, devices.ReplyTopic("+"), topics) != nil {
		return f
	}
	if publishWake(ctx, dispatcherClient, connector.topic) != nil {
		return f
	}
	select {
	case <-topics:
		f.State, f.Found = Failed, "clients without an account are accepted, and receive messages to devices"
	case <-time.After(listenTime):
	case <-ctx.Done():
	}
	return f
}

// checkRights compares the rights that mosquitto's dynamic-security plugin has stored with the rights that serve would
// set. It does not change the stored rights.
func (p Installation) checkRights(ctx context.Context, options mqtt.Options) Finding {
	f := Finding{Check: "broker accounts", State: OK, Found: "not managed by the dispatcher (mqtt_provision=off)"}
	if p.Config.MQTTProvision != "dynsec" {
		return f
	}
	client, err := dynsec.New(dynsec.Options{URL: options.URL, User: options.User, Password: options.Password, TLS: options.TLS})
	if err != nil {
		return Finding{f.Check, Failed, err.Error(), "correct the settings of MQTT"}
	}
	missing, err := client.ListMissingRights(ctx)
	switch {
	case err != nil:
		return Finding{f.Check, Failed, err.Error(), "load mosquitto's dynamic-security plugin, and let " + options.User + " use it: deploy/mosquitto/dynsec"}
	case len(missing) > 0:
		return Finding{f.Check, Warning, "rights differ: " + strings.Join(missing, ", "), "start serve once: it sets the rights"}
	}
	f.Found = "the rights of the dispatcher and the default rights are correct"
	return f
}

// checkDeviceRules tests that a device receives its own replies, and no replies to other devices. It sends both with dispatcherClient.
func (p Installation) checkDeviceRules(ctx context.Context, connector brokerConnector, dispatcherClient paho.Client) Finding {
	f := Finding{Check: "broker rules for devices", State: OK, Found: "a device receives its own replies, and no replies to other devices"}
	if p.Device == "" {
		return Finding{f.Check, Unknown, "not checked without the account of a device", "use --device ID --device-token-file FILE, of a device that is not in use"}
	}
	client, err := connector.connect(ctx, brokerAccount{p.Device, p.Device, p.DeviceToken})
	if err != nil {
		return Finding{f.Check, Failed, p.Device + ": " + err.Error(), "give the device an account, or correct its token"}
	}
	defer client.Disconnect(0)
	topics := make(chan string, 8)
	ownTopic := devices.ReplyTopic(devices.ID(p.Device))
	if err := subscribe(ctx, client, ownTopic, topics); err != nil {
		return Finding{f.Check, Failed, p.Device + ": " + err.Error(), "let each device subscribe to its own replies: see deploy/mosquitto"}
	}
	_ = subscribe(ctx, client, devices.ReplyTopic("+"), topics) // a broker with correct rules refuses it
	err = errors.Join(publishWake(ctx, dispatcherClient, connector.topic), publishWake(ctx, dispatcherClient, ownTopic))
	if err == nil {
		select {
		case topic := <-topics: // the reply to the other device was published first, so it arrives first
			if topic == ownTopic {
				return f
			}
			return Finding{f.Check, Failed, "a device receives messages to another device", "limit the rights of each device to its own topics: deploy/mosquitto/passwords/acl, or dynsec"}
		case <-ctx.Done():
			err = fmt.Errorf("a message from the dispatcher to %s did not arrive", ownTopic)
		}
	}
	return Finding{f.Check, Failed, err.Error(), "let the dispatcher publish to fleet/v1/+/reply, and each device subscribe to its own topic"}
}
