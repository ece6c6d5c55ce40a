// Package dynsec keeps the accounts of devices at a mosquitto broker: a client
// of its dynamic-security plugin (2.0 and newer), over MQTT.
//
// An account has the device's id as user name and client id, the device's token
// as password, and a role of its own, for the plugin knows no patterns: publish
// to its report topic, subscribe to its reply topic, nothing else.
//
// Several replicas share one client id. A replica that connects takes the id over.
// With the connection of the one before, the broker drops its unanswered commands:
// a command that was given up never comes after a newer one.
package dynsec

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/mqtt"
)

// clientID is no device's: it has a slash.
const clientID = "$dispatcher/accounts"

// Options of a Client; URL, User and Password are required.
type Options struct {
	URL            string // as of mqtt.Options
	User, Password string // an account that may use the plugin; the user is no valid device id
	TLS            *tls.Config
	Logger         *slog.Logger // default: none
}

// Client changes accounts. It connects when it is needed, and again after a
// loss. It is safe for concurrent use; changes are made one at a time.
type Client struct {
	options Options
	dial    func(context.Context) (net.Conn, error)
	turn    chan *connection // holds one element: nil when not connected
}

// New returns a client that is not connected yet. Errors are wrong options.
func New(options Options) (*Client, error) {
	dial, err := mqtt.Dialer(options.URL, options.TLS)
	if err != nil {
		return nil, fmt.Errorf("dynsec: %w", err)
	}
	if options.User == "" || options.Password == "" {
		return nil, errors.New("dynsec: user and password are required")
	}
	if _, err := devices.ParseID(options.User); err == nil {
		return nil, errors.New("dynsec: the user must not be a valid device id: it would be a device's account")
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Client{options: options, dial: dial, turn: make(chan *connection, 1)}
	c.turn <- nil
	return c, nil
}

// Set makes accounts of devices, or changes them. A session that is open with
// another password ends.
func (c *Client) Set(ctx context.Context, list ...devices.Account) error {
	return c.do(ctx, func(conn *connection) error {
		there, err := conn.create(ctx, list)
		if err != nil || len(there) == 0 {
			return err
		}
		var commands []command
		for _, a := range there {
			commands = append(commands, modifyRole(deviceRole(a.Device)), modifyClient(a), enableClient(a.Device, a.Enabled))
		}
		answers, err := conn.ask(ctx, commands...)
		if err != nil {
			return err
		}
		return refusals(answers)
	})
}

// create makes accounts, and returns those that were there already.
func (c *connection) create(ctx context.Context, list []devices.Account) (there []devices.Account, err error) {
	var commands []command
	for _, a := range list {
		commands = append(commands, createRole(deviceRole(a.Device)), createClient(a))
		if !a.Enabled { // each command writes the broker's whole list: none too many
			commands = append(commands, enableClient(a.Device, false))
		}
	}
	answers, err := c.ask(ctx, commands...)
	if err != nil {
		return nil, err
	}
	at := 0
	for _, a := range list {
		if answers[at+1].is(alreadyExists) {
			there = append(there, a)
		}
		if at += 2; !a.Enabled {
			at++
		}
	}
	return there, refusals(answers, roleExists, alreadyExists)
}

// Enable lets the account open sessions; none is no error.
func (c *Client) Enable(ctx context.Context, device devices.ID) error {
	return c.tell(ctx, enableClient(device, true))
}

// Disable ends the account's session and lets it open none; none is no error.
func (c *Client) Disable(ctx context.Context, device devices.ID) error {
	return c.tell(ctx, enableClient(device, false))
}

// Delete ends the account's session and removes it; none is no error.
func (c *Client) Delete(ctx context.Context, device devices.ID) error {
	return c.tell(ctx, command{Command: "deleteClient", Username: string(device)}, command{Command: "deleteRole", RoleName: roleName(device)})
}

// Disconnect has nothing to do: Set ended the sessions.
func (c *Client) Disconnect(context.Context, devices.ID) error { return nil }

// Check connects, if it is not connected, and makes sure that the dispatchers'
// account has its rights and that the rest is denied.
func (c *Client) Check(ctx context.Context) error {
	return c.do(ctx, func(*connection) error { return nil })
}

// Close disconnects. The client may be used again.
func (c *Client) Close() error {
	conn := <-c.turn
	if conn != nil {
		conn.close()
	}
	c.turn <- nil
	return nil
}

// tell sends commands for which "not found" is as good as done.
func (c *Client) tell(ctx context.Context, commands ...command) error {
	return c.do(ctx, func(conn *connection) error {
		answers, err := conn.ask(ctx, commands...)
		if err != nil {
			return err
		}
		return refusals(answers, clientNotFound, roleNotFound)
	})
}

// do runs work on a connection, once more when the one that was open turns out
// to be lost: everything here may be done twice.
func (c *Client) do(ctx context.Context, work func(*connection) error) error {
	var conn *connection
	select {
	case conn = <-c.turn:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the connection to the broker: %w", ctx.Err())
	}
	defer func() { c.turn <- conn }()
	if conn != nil {
		err := conn.run(ctx, work)
		if err == nil || !errors.Is(err, errLost) {
			return err
		}
		conn.close()
		conn = nil
	}
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	return conn.run(ctx, work)
}
