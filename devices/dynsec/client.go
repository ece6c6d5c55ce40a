// Package dynsec manages the accounts of devices at a mosquitto broker. It is a client of the broker's dynamic-security plugin (mosquitto
// 2.0 and newer), over MQTT.
//
// An account has the device's id as user name and client id, and the device's token as password. Each account has its own role, because a right
// of the plugin cannot contain a pattern. The role lets the device publish to its report topic and subscribe to its reply topic, and nothing
// else.
//
// All replicas share one client id. The broker closes the connection of the previous replica and drops its unanswered commands, so an
// abandoned command never takes effect after a newer one.
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

// clientID is the MQTT client id of every replica. It contains a slash, so it is not a valid device id.
const clientID = "$dispatcher/accounts"

// Options configures a Client. URL, User and Password are required.
type Options struct {
	URL            string // mqtt://host[:port], tcp://host[:port] or mqtts://host[:port]
	User, Password string // an account that may use the plugin; User must not be a valid device id
	TLS            *tls.Config
	Logger         *slog.Logger // default: no log
}

// Client changes accounts, one change at a time. It connects when it is first used, and after a lost connection. It is safe for concurrent
// use.
type Client struct {
	options  Options
	dial     func(context.Context) (net.Conn, error)
	connTurn chan *connection // holds the connection, or nil while the client is not connected; a change takes it out and puts it back
}

// New returns a client that is not connected yet.
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
	c := &Client{options: options, dial: dial, connTurn: make(chan *connection, 1)}
	c.connTurn <- nil
	return c, nil
}

// Set creates or changes the accounts of devices and their roles at the broker. The open session of an existing account ends.
func (c *Client) Set(ctx context.Context, accounts ...devices.Account) error {
	return c.withConnection(ctx, func(conn *connection) error {
		existing, err := conn.createAccounts(ctx, accounts)
		if err != nil || len(existing) == 0 {
			return err
		}
		var commands []command
		for _, a := range existing {
			commands = append(commands, modifyRoleCommand(deviceRole(a.Device)), modifyClientCommand(a), enableClientCommand(a.Device, a.Enabled))
		}
		answers, err := conn.ask(ctx, commands...)
		if err != nil {
			return err
		}
		return unexpectedErrors(answers)
	})
}

// createAccounts creates the accounts that do not exist yet. It does not change existing accounts, and returns them.
func (c *connection) createAccounts(ctx context.Context, accounts []devices.Account) (existing []devices.Account, err error) {
	var commands []command
	for _, a := range accounts {
		commands = append(commands, createRoleCommand(deviceRole(a.Device)), createClientCommand(a))
		if !a.Enabled { // The broker rewrites its whole list for each command, so no unnecessary command is sent.
			commands = append(commands, enableClientCommand(a.Device, false))
		}
	}
	answers, err := c.ask(ctx, commands...)
	if err != nil {
		return nil, err
	}
	answerIndex := 0
	for _, a := range accounts {
		if answers[answerIndex+1].hasError(alreadyExists) {
			existing = append(existing, a)
		}
		if answerIndex += 2; !a.Enabled {
			answerIndex++
		}
	}
	return existing, unexpectedErrors(answers, roleExists, alreadyExists)
}

// Enable allows the account to open sessions. If the account does not exist, Enable returns nil.
func (c *Client) Enable(ctx context.Context, device devices.ID) error {
	return c.sendIdempotent(ctx, enableClientCommand(device, true))
}

// Disable ends the account's session and allows no new session. If the account does not exist, Disable returns nil.
func (c *Client) Disable(ctx context.Context, device devices.ID) error {
	return c.sendIdempotent(ctx, enableClientCommand(device, false))
}

// Delete ends the account's session, and deletes the account and its role. If they do not exist, Delete returns nil.
func (c *Client) Delete(ctx context.Context, device devices.ID) error {
	return c.sendIdempotent(ctx, command{Command: "deleteClient", Username: string(device)}, command{Command: "deleteRole", RoleName: roleName(device)})
}

// Disconnect does nothing, because Set leaves no session open that was opened with an older password.
func (c *Client) Disconnect(context.Context, devices.ID) error { return nil }

// Check connects if the client is not connected, and so makes sure that the account of the dispatchers has its rights.
func (c *Client) Check(ctx context.Context) error {
	return c.withConnection(ctx, func(*connection) error { return nil })
}

// Close disconnects the client. A later call of another method connects the client again.
func (c *Client) Close() error {
	conn := <-c.connTurn
	if conn != nil {
		conn.close()
	}
	c.connTurn <- nil
	return nil
}

// sendIdempotent sends commands to the plugin. It ignores the errors of the plugin about a missing account or role.
func (c *Client) sendIdempotent(ctx context.Context, commands ...command) error {
	return c.withConnection(ctx, func(conn *connection) error {
		answers, err := conn.ask(ctx, commands...)
		if err != nil {
			return err
		}
		return unexpectedErrors(answers, clientNotFound, roleNotFound)
	})
}

// withConnection runs work on the connection. If the open connection turns out to be lost, it connects and runs work again, so work must be
// repeatable.
func (c *Client) withConnection(ctx context.Context, work func(*connection) error) error {
	var conn *connection
	select {
	case conn = <-c.connTurn:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the connection to the broker: %w", ctx.Err())
	}
	defer func() { c.connTurn <- conn }()
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
