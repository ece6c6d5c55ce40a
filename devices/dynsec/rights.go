package dynsec

import (
	"cmp"
	"context"
	"errors"
	"slices"
)

// errRightsChanged means that the session ended because the account's roles were changed.
var errRightsChanged = errors.New("the account's rights changed")

// ensureRights makes sure that the account of the dispatchers has the rights of dispatcherRole, and that the default rights deny everything
// else. It changes only wrong rights, because a change ends the sessions of all dispatchers.
func (c *Client) ensureRights(ctx context.Context, conn *connection) error {
	changes, err := c.rightsToSet(ctx, conn)
	if err != nil || len(changes) == 0 {
		return err
	}
	c.options.Logger.InfoContext(ctx, "setting up the rights at the broker", "changes", len(changes))
	answers, err := conn.ask(ctx, changes...)
	if errors.Is(err, errLost) {
		return errRightsChanged
	}
	return errors.Join(err, unexpectedErrors(answers, roleExists)) // another replica may have created the role
}

// rightsToSet returns the commands that set up the rights at the broker, or none if they are right already.
func (c *Client) rightsToSet(ctx context.Context, conn *connection) (toSend []command, err error) {
	wantedRole := dispatcherRole()
	answers, err := conn.ask(ctx,
		command{Command: "getClient", Username: c.options.User},
		command{Command: "getRole", RoleName: wantedRole.name},
		command{Command: "getDefaultACLAccess"})
	if err != nil {
		return nil, err
	}
	account, currentRole, defaultRights := answers[0], answers[1], answers[2]
	if err := errors.Join(account.unexpectedError(), currentRole.unexpectedError(roleNotFound), defaultRights.unexpectedError()); err != nil {
		return nil, err
	}
	var changes []command
	if !haveSameRights(defaultRights.Data.ACLs, defaultACLs()) {
		changes = append(changes, command{Command: "setDefaultACLAccess", ACLs: defaultACLs()})
	}
	switch {
	case currentRole.hasError(roleNotFound):
		changes = append(changes, createRoleCommand(wantedRole))
	case !haveSameRights(currentRole.Data.Role.ACLs, wantedRole.acls):
		changes = append(changes, modifyRoleCommand(wantedRole))
	}
	if !slices.Contains(account.Data.Client.Roles, roleEntry{wantedRole.name}) {
		// This command must be last, because it ends this session.
		changes = append(changes, command{Command: "addClientRole", Username: c.options.User, RoleName: wantedRole.name})
	}
	return changes, nil
}

// ListMissingRights returns the names of the commands that Check would send to set up the rights.
func (c *Client) ListMissingRights(ctx context.Context) (missing []string, err error) {
	conn, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	changes, err := c.rightsToSet(ctx, conn)
	for _, change := range changes {
		missing = append(missing, change.Command)
	}
	return missing, err
}

func haveSameRights(a, b []acl) bool {
	order := func(x, y acl) int { return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Topic, y.Topic)) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}
