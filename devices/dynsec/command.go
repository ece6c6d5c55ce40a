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

// acl is a right: Allow says whether clients may do the action Type with a topic.
type acl struct {
	Type  string `json:"acltype"`
	Topic string `json:"topic,omitempty"`
	Allow bool   `json:"allow"`
}

type role struct {
	name string
	acls []acl
}

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

func (a pluginAnswer) hasError(text string) bool { return a.Error == text }

// unexpectedError returns the answer's error. It returns nil if the answer has no error or an expected error.
func (a pluginAnswer) unexpectedError(expected ...string) error {
	if a.Error == "" || slices.Contains(expected, a.Error) {
		return nil
	}
	return fmt.Errorf("the dynamic-security plugin refused %s: %s", a.Command, a.Error)
}

func unexpectedErrors(answers []pluginAnswer, expected ...string) (err error) {
	for _, a := range answers {
		err = errors.Join(err, a.unexpectedError(expected...))
	}
	return err
}

// roleName returns the name of the device's role, which is never the name of an administrator's role.
func roleName(device devices.ID) string { return "device:" + string(device) }

// deviceRole returns the role with all rights of a device. After a change here, an existing account gets the new rights with its next Set.
func deviceRole(device devices.ID) role {
	return role{roleName(device), []acl{
		{"publishClientSend", devices.ReportTopic(device), true},
		{"publishClientReceive", devices.ReplyTopic(device), true},
		{"subscribeLiteral", devices.ReplyTopic(device), true},
	}}
}

// dispatcherRole returns the role of the dispatchers at the broker. The role does not permit changes of accounts.
func dispatcherRole() role {
	return role{"dispatcher", []acl{
		{"publishClientSend", devices.ReplyTopic("+"), true},
		{"publishClientReceive", devices.ReportTopic("+"), true},
		{"subscribeLiteral", devices.SharedReportFilter(devices.DefaultGroup), true},
	}}
}

// defaultACLs returns the rights that apply if no role of an account has a matching right.
func defaultACLs() []acl {
	return []acl{
		{Type: "publishClientSend"},
		{Type: "publishClientReceive"},
		{Type: "subscribe"},
		{Type: "unsubscribe", Allow: true},
	}
}

func createRoleCommand(newRole role) command {
	return command{Command: "createRole", RoleName: newRole.name, ACLs: newRole.acls}
}

func modifyRoleCommand(changed role) command {
	return command{Command: "modifyRole", RoleName: changed.name, ACLs: changed.acls}
}

func createClientCommand(account devices.Account) command {
	return command{
		Command: "createClient", Username: string(account.Device), ClientID: string(account.Device), Password: account.Password,
		Roles: []roleEntry{{roleName(account.Device)}},
	}
}

func modifyClientCommand(account devices.Account) command {
	c := createClientCommand(account)
	c.Command = "modifyClient"
	return c
}

func enableClientCommand(device devices.ID, enabled bool) command {
	if enabled {
		return command{Command: "enableClient", Username: string(device)}
	}
	return command{Command: "disableClient", Username: string(device)}
}
