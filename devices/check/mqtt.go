package check

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// startMQTT starts a broker on r.MQTT and subscribes to the reports of devices. stop ends the subscription and the broker.
func (r *run) startMQTT() (stop func(), err error) {
	const timeout = 5 * time.Second                                  // for an answer of the broker, which is part of this process
	own := broker.Credentials{User: "$check", Password: rand.Text()} // no valid device id
	b, err := broker.New(broker.Options{Listener: r.MQTT, Internal: own, Authenticate: func(_ context.Context, _ devices.ID, token string) error {
		r.runInLoop(func() { r.checkToken(nil, token) })
		return nil
	}})
	if err != nil {
		return nil, err
	}
	if err := b.Start(); err != nil {
		return nil, err
	}
	client := paho.NewClient(mqtt.PahoOptions("dispatcher-check", own.User, own.Password, mqtt.KeepAlive).AddBroker(r.MQTTScheme + "://" + b.Addr().String()).
		SetTLSConfig(&tls.Config{InsecureSkipVerify: true})) // the broker is in this process
	stop = func() {
		client.Disconnect(0)
		limited, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_ = b.Stop(limited) // a client that outlasts Stop ends with the process
	}
	client.Connect().WaitTimeout(timeout)
	subscribed := client.Subscribe(devices.SharedReportFilter(devices.DefaultGroup), 1, func(_ paho.Client, m paho.Message) {
		device, _ := devices.ParseReportTopic(m.Topic()) // the broker has checked the topic
		x := newExchange(device, m.Payload())
		x.transmit = func(a answer) {
			if a.isLost {
				b.Disconnect(device)
				return
			}
			client.Publish(devices.ReplyTopic(device), 1, false, a.encode())
		}
		r.runInLoop(func() { r.checkReport(x) })
	})
	subscribed.WaitTimeout(timeout)
	if err := subscribed.Error(); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}
