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

// rules decides which clients may connect, publish and subscribe. It compares exact topics, so it
// denies every wildcard, $share and $SYS filter except the dispatcher's own shared subscription.
type rules struct {
	mqtt.HookBase
	authenticate func(device devices.ID, password string) error
	onRefused    func(RefusedSession)
	internal     Credentials
}

// ID implements mqtt.Hook.
func (r *rules) ID() string { return "rules" }

// Provides implements mqtt.Hook.
func (r *rules) Provides(method byte) bool {
	return method == mqtt.OnConnect || method == mqtt.OnConnectAuthenticate || method == mqtt.OnACLCheck
}

// OnConnect makes every session clean and limits the keepalive to maxKeepalive, regardless of
// the values that the client requested.
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

// OnConnectAuthenticate admits the dispatcher, and devices under their own id. It also checks the
// topic of the will, because the broker publishes a will without another check.
func (r *rules) OnConnectAuthenticate(client *mqtt.Client, packet packets.Packet) bool {
	user := string(packet.Connect.Username)
	err := r.admit(client.ID, user, packet)
	if err != nil {
		r.onRefused(RefusedSession{User: user, Remote: client.Net.Remote, Err: err})
	}
	return err == nil
}

func (r *rules) admit(clientID, user string, packet packets.Packet) error {
	password := string(packet.Connect.Password)
	if packet.Connect.WillFlag && !r.mayPublish(user, packet.Connect.WillTopic) {
		return errWill
	}
	if r.internal.matches(user, password) {
		return nil
	}
	device, err := devices.ParseID(user)
	if err != nil {
		return fmt.Errorf("user name: %w", err)
	}
	if !isOwnClientID(clientID, user) {
		return errClientID
	}
	return r.authenticate(device, password)
}

var (
	errWill     = errors.New("will topic: must be the report topic of the client")
	errClientID = errors.New("client id: must be the user name, or begin with the user name and a /")
)

// isOwnClientID reports whether the client id belongs to the user: it is the user name, or begins with
// the user name and a '/', which no device id contains. So no client can take over the session of
// another device by using its client id.
func isOwnClientID(id, user string) bool { return id == user || strings.HasPrefix(id, user+"/") }

// OnACLCheck reports whether the client may publish to topic (write is true) or subscribe to it.
// mochi also calls it for each delivery, with the topic of the message.
func (r *rules) OnACLCheck(client *mqtt.Client, topic string, write bool) bool {
	user := string(client.Properties.Username)
	if write {
		return r.mayPublish(user, topic)
	}
	return r.mayRead(user, topic)
}

// mayPublish reports whether user may publish to topic, also as the topic of its will.
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
	return err == nil || filter == devices.SharedReportFilter(devices.DefaultGroup)
}
