package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// profiles is the part of the ledger that holds the named lists of policies: the profiles of devices and the limit sets of callers.
type profiles struct{ *connection }

// Profile is a named list of policies that devices share.
type Profile struct {
	Name      string
	Limits    json.RawMessage // a valid JSON array of policies; nil means no policies
	Version   int64           // increases with every change
	CreatedAt time.Time
	UpdatedAt time.Time
}

// policyTable describes a table that stores lists of policies: its name, the word for one list in errors, and the kinds of its events. In
// this file a list is a Profile or a LimitSet.
type policyTable struct {
	table, noun               string
	created, changed, deleted string // kinds of events
}

// profileTable describes the table of the profiles.
func profileTable() policyTable {
	return policyTable{"profiles", "profile", "profile.created", "profile.changed", "profile.deleted"}
}

const profileColumns = `p.name, p.limits, p.version, p.created_at, p.updated_at`

// profileDest returns pointers to the fields of profile. A query that selects profileColumns scans a row into them.
func profileDest(profile *Profile) []any {
	return []any{&profile.Name, &profile.Limits, &profile.Version, &profile.CreatedAt, &profile.UpdatedAt}
}

// Profile returns one profile, or ErrNotFound.
func (s profiles) Profile(ctx context.Context, name string) (Profile, error) {
	return s.readSession().profiles().readPolicyList(ctx, profileTable(), name, "")
}

// readPolicyList reads the list of policies with this name from table, or returns ErrNotFound. lockSQL is the clause of the statement that
// locks the row; empty means no lock.
func (s profilesIn) readPolicyList(ctx context.Context, table policyTable, name, lockSQL string) (Profile, error) {
	return queryOne(ctx, s.session, profileDest, `SELECT `+profileColumns+` FROM `+table.table+` p WHERE p.name = $1 `+lockSQL, name)
}

// Profiles returns at most limit profiles with a name > afterName, in the order of names.
func (s profiles) Profiles(ctx context.Context, afterName string, limit int) ([]Profile, error) {
	return s.readSession().profiles().readPolicyListPage(ctx, profileTable(), afterName, limit)
}

// readPolicyListPage reads at most limit lists of policies with a name > afterName from table.
func (s profilesIn) readPolicyListPage(ctx context.Context, table policyTable, afterName string, limit int) ([]Profile, error) {
	return collect(ctx, s.session, profileDest, `SELECT `+profileColumns+` FROM `+table.table+` p WHERE p.name > $1 ORDER BY p.name LIMIT $2`, afterName, limit)
}

// PutProfile creates a profile or replaces its policies, which must be valid. created is true if the profile is new. If nothing changes,
// nothing is written and the version stays.
func (s profiles) PutProfile(ctx context.Context, actor, name string, policies json.RawMessage) (profile Profile, created bool, err error) {
	return s.putPolicyList(ctx, profileTable(), actor, name, policies, false)
}

// putPolicyList creates or replaces the list of policies with this name in table. created is true if the list is new. If dryRun is true,
// putPolicyList checks everything and changes nothing.
func (s profiles) putPolicyList(ctx context.Context, table policyTable, actor, name string, policies json.RawMessage, dryRun bool) (list Profile, created bool, err error) {
	err = s.write(ctx, func(tx session) error {
		list, created, err = tx.profiles().putPolicyList(ctx, table, actor, name, policies)
		if err == nil && dryRun {
			err = errDryRun // rolls the transaction back
		}
		return err
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return Profile{}, false, fmt.Errorf("changing %s %s: %w", table.noun, name, err)
	}
	return list, created, nil
}

// putPolicyList creates or replaces the list of policies with this name in table and records the event.
func (s profilesIn) putPolicyList(ctx context.Context, table policyTable, actor, name string, policies json.RawMessage) (list Profile, created bool, err error) {
	list, err = s.readPolicyList(ctx, table, name, "{lock}")
	if err == nil && bytes.Equal(list.Limits, policies) {
		return list, false, nil
	}
	limits := describeChanges(settings{"limits", limitsText(list.Limits)}, settings{"limits", limitsText(policies)})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return list, false, err
	}
	if _, err := s.exec(ctx, `
		INSERT INTO `+table.table+` (name, limits, version, created_at, updated_at) VALUES ($1, $2{json}, 1, {now}, {now})
		ON CONFLICT (name) DO UPDATE SET limits = excluded.limits, version = `+table.table+`.version + 1, updated_at = excluded.updated_at`,
		name, nullText(policies)); err != nil {
		return list, false, fmt.Errorf("writing the policies: %w", err)
	}
	if table.table == profileTable().table {
		s.pendingNews.addPool(AllPools) // the devices with this profile may have tasks in any pool
	}
	if list, err = s.readPolicyList(ctx, table, name, ""); err != nil {
		return list, false, err
	}
	kind := table.changed
	if created = list.Version == 1; created {
		kind, limits = table.created, "limits="+limitsText(policies)
	}
	return list, created, s.recordEvent(ctx, Event{Kind: kind, Actor: actor, Detail: table.noun + "=" + name + " " + limits})
}

// DeleteProfile deletes a profile that no device has. Errors: ErrNotFound, ErrInUse.
func (s profiles) DeleteProfile(ctx context.Context, actor, name string) error {
	return s.deletePolicyList(ctx, profileTable(), actor, name, func(tx session) error {
		used, err := queryOne(ctx, tx, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM devices WHERE profile = $1)`, name)
		if err == nil && used {
			return ErrInUse
		}
		return err
	})
}

// deletePolicyList deletes the list of policies with this name from table, unless check returns an error.
func (s profiles) deletePolicyList(ctx context.Context, table policyTable, actor, name string, check func(session) error) (err error) {
	defer describe(&err, "changing %s %s", table.noun, name)
	return s.write(ctx, func(tx session) error {
		// A transaction that gives the profile to a device locks the row of the profile first. So either this statement waits for that
		// transaction, or that transaction finds the profile deleted.
		if _, err := tx.profiles().readPolicyList(ctx, table, name, "{lock}"); err != nil {
			return err
		}
		if err := check(tx); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `DELETE FROM `+table.table+` WHERE name = $1`, name); err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: table.deleted, Actor: actor, Detail: table.noun + "=" + name})
	})
}

// lockProfile locks a profile until the end of the transaction, so that it cannot be deleted. It returns ErrUnknownProfile if there is no
// such profile. An empty name means no profile; then lockProfile does nothing.
func (s profilesIn) lockProfile(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	_, err := s.readPolicyList(ctx, profileTable(), name, "{share p}")
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %s", ErrUnknownProfile, name)
	}
	return err
}
