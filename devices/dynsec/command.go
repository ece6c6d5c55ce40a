package dynsec

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/devices"
)

// command is a command to the plugin. Empty fields are left out.
type command struct {
	Command       string      `json:"command"`
	CorrelationID string      `json:"correlationData"` // the same for all commands of one message; the plugin returns it in the answers
	Username      string      `json:"username,omitempty"`
	ClientID      string      `json:"clientid,omitempty"`
	Password      string      `json:"password,omitempty"`
	RoleName      string      `json:"rolename,omitempty"`
	Roles         []roleEntry `json:"roles,omitempty"`
	ACLs          []acl       `json:"acls,omitempty"`
}

// roleEntry names a role in a command or an answer of the plugin.
type roleEntry struct {
	RoleName string `json:"rolename"`
}

// acl is one right in the format of the plugin: whether clients may do something (Type) with a topic.
type acl struct {
	Type  string `json:"acltype"`
	Topic string `json:"topic,omitempty"`
	Allow bool   `json:"allow"`
}

// role is a role of the plugin: a named list of rights.
type role struct {
	name string
	acls []acl
}

// pluginAnswer is the plugin's answer to one command.
type pluginAnswer struct {
	Command       string `json:"command"`
	CorrelationID string `json:"correlationData"`
	Error         string `json:"error"`
	Data          struct {
		Client struct {
			Roles []roleEntry `json:"roles"`
		} `json:"client"`
		Role struct {
			ACLs []acl `json:"acls"`
		} `json:"role"`
		ACLs []acl `json:"acls"`
	} `json:"data"`
}

// The plugin's errors if an account or a role already exists or does not exist.
const (
	alreadyExists  = "Client already exists"
	roleExists     = "Role already exists"
	clientNotFound = "Client not found"
	roleNotFound   = "Role not found"
)

// hasError reports whether the plugin answered with the error text.
func (a pluginAnswer) hasError(text string) bool { return a.Error == text }

// unexpectedError returns the answer's error, or nil if the answer has no error or one of the expected errors.
func (a pluginAnswer) unexpectedError(expected ...string) error {
	if a.Error == "" || slices.Contains(expected, a.Error) {
		return nil
	}
	return fmt.Errorf("the dynamic-security plugin refused %s: %s", a.Command, a.Error)
}

// unexpectedErrors returns the errors of answers, joined, except the errors in expected.
func unexpectedErrors(answers []pluginAnswer, expected ...string) (err error) {
	for _, a := range answers {
		err = errors.Join(err, a.unexpectedError(expected...))
	}
	return err
}

// roleName returns the name of the device's role. Because of its prefix, it never equals the name of an administrator's role.
func roleName(device devices.ID) string { return "device:" + string(device) }

// deviceRole returns the role with all rights of a device. If the rights here are changed, an existing account gets the new rights only
// with its next Set.
func deviceRole(device devices.ID) role {
	return role{roleName(device), []acl{
		{"publishClientSend", devices.ReportTopic(device), true},
		{"publishClientReceive", devices.ReplyTopic(device), true},
		{"subscribeLiteral", devices.ReplyTopic(device), true},
	}}
}

// dispatcherRole returns the role with the rights of the dispatchers, except the right to use the plugin.
func dispatcherRole() role {
	return role{"dispatcher", []acl{
		{"publishClientSend", devices.ReplyTopic("+"), true},
		{"publishClientReceive", devices.ReportTopic("+"), true},
		{"subscribeLiteral", devices.SharedReportFilter(devices.DefaultGroup), true},
	}}
}

// defaultACLs returns the default rights. They apply where no role has a matching right.
func defaultACLs() []acl {
	return []acl{
		{Type: "publishClientSend"},
		{Type: "publishClientReceive"},
		{Type: "subscribe"},
		{Type: "unsubscribe", Allow: true},
	}
}

// createRole returns the command that creates a role.
func createRole(newRole role) command {
	return command{Command: "createRole", RoleName: newRole.name, ACLs: newRole.acls}
}

// modifyRole returns the command that sets the rights of an existing role.
func modifyRole(changed role) command {
	return command{Command: "modifyRole", RoleName: changed.name, ACLs: changed.acls}
}

// createClient returns the command that creates an account with the role of its device.
func createClient(account devices.Account) command {
	return command{
		Command: "createClient", Username: string(account.Device), ClientID: string(account.Device), Password: account.Password,
		Roles: []roleEntry{{roleName(account.Device)}},
	}
}

// modifyClient returns the command that sets the password and the role of an existing account.
func modifyClient(account devices.Account) command {
	c := createClient(account)
	c.Command = "modifyClient"
	return c
}

// enableClient returns the command that enables the account of a device, or disables it if enabled is false.
func enableClient(device devices.ID, enabled bool) command {
	if enabled {
		return command{Command: "enableClient", Username: string(device)}
	}
	return command{Command: "disableClient", Username: string(device)}
}
