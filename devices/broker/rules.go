package broker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/fleetslots/dispatcher/devices"
)

// rules decide who may connect, publish and subscribe. Every decision is by
// exact topic: no wildcard, $share or $SYS filter is ever equal to one.
type rules struct {
	mqtt.HookBase
	authenticate func(device devices.ID, password string) error
	refused      func(Refusal)
	internal     Credentials
}

// ID implements mqtt.Hook.
func (r *rules) ID() string { return "rules" }

// Provides implements mqtt.Hook.
func (r *rules) Provides(method byte) bool {
	return method == mqtt.OnConnect || method == mqtt.OnConnectAuthenticate || method == mqtt.OnACLCheck
}

// OnConnect makes every session clean and every silence bounded, whatever the
// client asked for.
func (r *rules) OnConnect(client *mqtt.Client, _ packets.Packet) error {
	client.Properties.Clean = true
	client.Properties.Props.SessionExpiryInterval = 0
	client.Properties.Props.SessionExpiryIntervalFlag = false
	longest := uint16(maxKeepalive / time.Second)
	if client.State.Keepalive == 0 || client.State.Keepalive > longest {
		client.State.Keepalive = longest
	}
	return nil
}

// OnConnectAuthenticate admits the dispatcher, and devices under their own id.
// A will is published without a further check, so its topic is checked here.
func (r *rules) OnConnectAuthenticate(client *mqtt.Client, packet packets.Packet) bool {
	user := string(packet.Connect.Username)
	err := r.admit(client.ID, user, packet)
	if err != nil {
		r.refused(Refusal{User: user, Remote: client.Net.Remote, Err: err})
	}
	return err == nil
}

func (r *rules) admit(clientID, user string, packet packets.Packet) error {
	password := string(packet.Connect.Password)
	if packet.Connect.WillFlag && !r.mayPublish(user, packet.Connect.WillTopic) {
		return errWill
	}
	if r.internal.match(user, password) {
		return nil
	}
	device, err := devices.ParseID(user)
	if err != nil {
		return fmt.Errorf("user name: %w", err)
	}
	if !ownClientID(clientID, user) {
		return errClientID
	}
	return r.authenticate(device, password)
}

var (
	errWill     = errors.New("the topic of its will is not its own")
	errClientID = errors.New("its client id neither is the user name nor begins with it and a /")
)

// ownClientID keeps sessions apart: a client id in use is taken over, so it has
// to be the device's own, or begin with it and a '/', which no device id has.
func ownClientID(id, user string) bool { return id == user || strings.HasPrefix(id, user+"/") }

// OnACLCheck is asked for each publish, each subscription, and, with the
// topic of the message, for each delivery.
func (r *rules) OnACLCheck(client *mqtt.Client, topic string, write bool) bool {
	user := string(client.Properties.Username)
	if write {
		return r.mayPublish(user, topic)
	}
	return r.mayRead(user, topic)
}

func (r *rules) mayPublish(user, topic string) bool {
	if user == r.internal.User {
		_, err := devices.ParseReplyTopic(topic)
		return err == nil
	}
	return topic == devices.ReportTopic(devices.ID(user))
}

func (r *rules) mayRead(user, filter string) bool {
	if user != r.internal.User {
		return filter == devices.ReplyTopic(devices.ID(user))
	}
	_, err := devices.ParseReportTopic(filter)
	return err == nil || filter == devices.SharedReportFilter(devices.Group)
}
