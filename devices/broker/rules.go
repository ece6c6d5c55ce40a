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

// rules decides which clients may connect, publish and subscribe. It compares exact topics, so it denies every filter with a wildcard,
// $share or $SYS, except the dispatcher's own shared subscription.
type rules struct {
	mqtt.HookBase
	authenticate func(device devices.ID, password string) error
	onRefused    func(RefusedSession)
	internal     Credentials
}

// ID returns the name of this hook for mochi's log.
func (r *rules) ID() string { return "rules" }

// Provides reports whether this hook implements hookMethod, a constant of mochi.
func (r *rules) Provides(hookMethod byte) bool {
	return hookMethod == mqtt.OnConnect || hookMethod == mqtt.OnConnectAuthenticate || hookMethod == mqtt.OnACLCheck
}

// OnConnect makes every session clean and limits the keepalive to maxKeepalive.
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

// OnConnectAuthenticate reports whether the client may open a session. The client must be the dispatcher, or a device whose user name is its id.
func (r *rules) OnConnectAuthenticate(client *mqtt.Client, packet packets.Packet) bool {
	user := string(packet.Connect.Username)
	err := r.checkSession(client.ID, user, packet)
	if err != nil {
		r.onRefused(RefusedSession{User: user, Remote: client.Net.Remote, Err: err})
	}
	return err == nil
}

// checkSession returns an error if the client may not open a session. It checks the topic of the will, because the broker publishes a will
// without another check.
func (r *rules) checkSession(clientID, userName string, connectPacket packets.Packet) error {
	password := string(connectPacket.Connect.Password)
	if connectPacket.Connect.WillFlag && !r.mayPublish(userName, connectPacket.Connect.WillTopic) {
		return errWill
	}
	if r.internal.matches(userName, password) {
		return nil
	}
	device, err := devices.ParseID(userName)
	if err != nil {
		return fmt.Errorf("user name: %w", err)
	}
	if !isOwnClientID(clientID, userName) {
		return errClientID
	}
	return r.authenticate(device, password)
}

var (
	errWill     = errors.New("will topic: must be the report topic of the client")
	errClientID = errors.New("client id: must be the user name, or begin with the user name and a /")
)

// isOwnClientID reports whether clientID belongs to the user. No device id contains a '/', so no client can take over the session of
// another device.
func isOwnClientID(clientID, userName string) bool {
	return clientID == userName || strings.HasPrefix(clientID, userName+"/")
}

// OnACLCheck reports whether the client may publish to topic, if write is true. If write is false, it reports whether the client may
// subscribe to topic and receive its messages.
func (r *rules) OnACLCheck(client *mqtt.Client, topic string, write bool) bool {
	user := string(client.Properties.Username)
	if write {
		return r.mayPublish(user, topic)
	}
	return r.mayRead(user, topic)
}

func (r *rules) mayPublish(userName, topic string) bool {
	if userName == r.internal.User {
		_, err := devices.ParseReplyTopic(topic)
		return err == nil
	}
	return topic == devices.ReportTopic(devices.ID(userName))
}

func (r *rules) mayRead(userName, topicFilter string) bool {
	if userName != r.internal.User {
		return topicFilter == devices.ReplyTopic(devices.ID(userName))
	}
	_, err := devices.ParseReportTopic(topicFilter)
	return err == nil || topicFilter == devices.SharedReportFilter(devices.DefaultGroup)
}
