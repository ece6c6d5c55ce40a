package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/dynsec"
	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// broker tests the broker as the dispatcher, without an account, and as a device. replicas is the
// number of running replicas, or notKnown. If replicas run or may run, broker does not test the shared
// subscription, because it would take reports from them.
func (p Patient) broker(ctx context.Context, replicas int) []Finding {
	if p.Config.MQTTURL == "" {
		return []Finding{{Check: "broker", State: OK, Found: "none: devices use HTTP"}}
	}
	options, err := p.Config.Broker()
	if err != nil {
		return []Finding{{"broker", Failed, err.Error(), "correct the settings of MQTT"}}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b := visitor{options: options, topic: devices.ReplyTopic(devices.ID("doctor-" + strings.ToLower(rand.Text()[:8])))}
	own, err := b.enter(ctx, account{"dispatcher-doctor-" + rand.Text()[:8], options.User, options.Password})
	if err != nil {
		return []Finding{{"broker", Failed, err.Error(), "start it, or correct mqtt_url, mqtt_user, mqtt_password, mqtt_ca_file; see deploy/mosquitto"}}
	}
	defer own.Disconnect(0)
	list := []Finding{{Check: "broker", State: OK, Found: "it lets the dispatcher in as " + options.User}}
	list = append(list, subscribes(ctx, own, replicas), anonymous(ctx, b, own), p.rights(ctx, options))
	return append(list, p.device(ctx, b, own))
}

// subscribes tests the subscription of the replicas, unless a running replica would lose a report by
// it.
func subscribes(ctx context.Context, own paho.Client, replicas int) Finding {
	f := Finding{Check: "broker subscription", State: OK, Found: "the dispatcher may subscribe to the reports of devices"}
	if replicas == notKnown {
		return Finding{f.Check, Unknown, "not tried: reports would be lost to replicas that may run; the ledger does not say", "mend postgres first"}
	}
	if replicas > 0 {
		f.State, f.Found = Unknown, fmt.Sprintf("not tried: reports would be lost to the %d replicas that run", replicas)
		f.Remedy = "`mqtt` at /readyz of each replica says whether it is subscribed"
		return f
	}
	filter := devices.SharedReportFilter(devices.Group)
	if err := subscribe(ctx, own, filter, nil); err != nil {
		f.State, f.Found = Failed, err.Error()
		f.Remedy = "let the dispatcher's account subscribe to " + filter + ": see deploy/mosquitto"
		return f
	}
	_ = settled(ctx, own.Unsubscribe(filter)) // an error does not matter, because the connection ends soon
	return f
}

// anonymous tests whether a client without an account can connect, and whether it receives messages to
// devices.
func anonymous(ctx context.Context, b visitor, own paho.Client) Finding {
	f := Finding{Check: "broker without an account", State: OK, Found: "nobody is let in"}
	stranger, err := b.enter(ctx, account{id: "doctor-" + rand.Text()[:8]})
	if err != nil {
		return f
	}
	defer stranger.Disconnect(0)
	f.State, f.Found, f.Remedy = Warning, "anybody is let in", "set allow_anonymous false"
	heard := make(chan string, 1)
	if subscribe(ctx, stranger, devices.ReplyTopic("+"), heard) != nil {
		return f
	}
	if settled(ctx, own.Publish(b.topic, 1, false, devices.EncodeWake(0))) == nil && hears(ctx, heard, b.topic) {
		f.State, f.Found = Failed, "anybody is let in, and reads what is sent to devices"
	}
	return f
}

// rights compares the rights at the dynamic-security plugin with the expected ones. It changes nothing.
func (p Patient) rights(ctx context.Context, options mqtt.Options) Finding {
	f := Finding{Check: "broker accounts", State: OK, Found: "they do not follow the devices (mqtt_provision=off)"}
	if p.Config.MQTTProvision != "dynsec" {
		return f
	}
	client, err := dynsec.New(dynsec.Options{URL: options.URL, User: options.User, Password: options.Password, TLS: options.TLS})
	if err != nil {
		return Finding{f.Check, Failed, err.Error(), "correct the settings of MQTT"}
	}
	missing, err := client.Examine(ctx)
	switch {
	case err != nil:
		return Finding{f.Check, Failed, err.Error(), "load mosquitto's dynamic-security plugin, and let " + options.User + " use it: deploy/mosquitto/dynsec"}
	case len(missing) > 0:
		return Finding{f.Check, Warning, "rights differ: " + strings.Join(missing, ", "), "start serve once: it sets them up"}
	}
	f.Found = "the rights of the dispatcher and those of everybody are as they should be"
	return f
}

// device tests that a device receives its own replies, and no replies to other devices.
func (p Patient) device(ctx context.Context, b visitor, own paho.Client) Finding {
	f := Finding{Check: "broker rules for devices", State: OK, Found: "a device reads its own replies, and none of another"}
	if p.Device == "" {
		return Finding{f.Check, Unknown, "not tried without the account of a device", "use --device ID --device-token-file FILE, of a device that is not in use"}
	}
	client, err := b.enter(ctx, account{p.Device, p.Device, p.DeviceToken})
	if err != nil {
		return Finding{f.Check, Failed, p.Device + ": " + err.Error(), "give the device an account, or correct its token"}
	}
	defer client.Disconnect(0)
	heard := make(chan string, 8)
	mine := devices.ReplyTopic(devices.ID(p.Device))
	if err := subscribe(ctx, client, mine, heard); err != nil {
		return Finding{f.Check, Failed, p.Device + ": " + err.Error(), "let each device subscribe to its own replies: see deploy/mosquitto"}
	}
	_ = subscribe(ctx, client, devices.ReplyTopic("+"), heard) // a broker with correct rules refuses it
	err = errors.Join(settled(ctx, own.Publish(b.topic, 1, false, devices.EncodeWake(0))), settled(ctx, own.Publish(mine, 1, false, devices.EncodeWake(0))))
	for err == nil {
		select {
		case topic := <-heard:
			if topic == b.topic {
				return Finding{f.Check, Failed, "a device reads what is sent to another", "give each device the rights to its own topics alone: deploy/mosquitto/passwords/acl, or dynsec"}
			}
			return f // the reply to the other device was published first
		case <-ctx.Done():
			err = fmt.Errorf("what the dispatcher sent to %s did not come", mine)
		}
	}
	return Finding{f.Check, Failed, err.Error(), "let the dispatcher publish to fleet/v1/+/reply, and each device read its own"}
}
