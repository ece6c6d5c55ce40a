package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// profiles holds the named lists of policies: the profiles of devices and the limit sets of callers.
type profiles struct{ *connection }

// Profile is a named list of policies that devices share.
type Profile struct {
	Name         string
	Limits       json.RawMessage // a valid JSON array of policies; nil means no policies
	MetadataOnly bool            // devices that speak DDI also get tasks whose payload is no DDI deployment. A limit set has false
	Version      int64           // increases with every change
	CreatedAt    time.Time
	UpdatedAt    time.Time
}

// policyTable describes a table of lists of policies: its name, the word for a list in errors, and the kinds of its events. In this file, a
// list is a Profile or a LimitSet.
type policyTable struct {
	table, noun               string
	metadataOnly              string // SQL expression for the field MetadataOnly of row p
	created, changed, deleted string // kinds of events
}

func profileTable() policyTable {
	return policyTable{"profiles", "profile", "p.metadata_only", "profile.created", "profile.changed", "profile.deleted"}
}

// columns returns the columns of a Profile, for a row p of the table.
func (t policyTable) columns() string {
	return `p.name, p.limits, ` + t.metadataOnly + `, p.version, p.created_at, p.updated_at`
}

func profileScanDest(profile *Profile) (scanDest []any) {
	return []any{&profile.Name, &profile.Limits, &profile.MetadataOnly, &profile.Version, &profile.CreatedAt, &profile.UpdatedAt}
}

// Profile returns one profile, or ErrNotFound.
func (s profiles) Profile(ctx context.Context, name string) (Profile, error) {
	return s.readSession().readPolicyList(ctx, profileTable(), name, "")
}

// readPolicyList reads the list of policies with this name from table, or returns ErrNotFound. lockSQL is the locking clause of the statement,
// such as FOR UPDATE, or empty.
func (s session) readPolicyList(ctx context.Context, table policyTable, name, lockSQL string) (Profile, error) {
	return queryOne(ctx, s, profileScanDest, `SELECT `+table.columns()+` FROM `+table.table+` p WHERE p.name = $1 `+lockSQL, name)
}

// Profiles returns at most limit profiles with a name > afterName, in the order of names.
func (s profiles) Profiles(ctx context.Context, afterName string, limit int) ([]Profile, error) {
	return s.readSession().readPolicyListPage(ctx, profileTable(), afterName, limit)
}

// readPolicyListPage reads at most limit lists of policies with a name > afterName from table.
func (s session) readPolicyListPage(ctx context.Context, table policyTable, afterName string, limit int) ([]Profile, error) {
	return collect(ctx, s, profileScanDest, `SELECT `+table.columns()+` FROM `+table.table+` p WHERE p.name > $1 ORDER BY p.name LIMIT $2`, afterName, limit)
}

// PutProfile creates the profile with the name of settings, or replaces its settings: Limits, which must be valid, and MetadataOnly.
// created is true if the profile is new. If nothing changes, nothing is written and the version stays.
func (s profiles) PutProfile(ctx context.Context, actor string, settings Profile) (profile Profile, created bool, err error) {
	return s.putPolicyList(ctx, profileTable(), actor, settings, false)
}

// putPolicyList creates or replaces the list of policies with the name wanted.Name in table. created is true if the list is new. If dryRun is
// true, putPolicyList checks everything and changes nothing.
func (s profiles) putPolicyList(ctx context.Context, table policyTable, actor string, wanted Profile, dryRun bool) (list Profile, created bool, err error) {
	err = s.write(ctx, func(tx session) error {
		list, created, err = tx.putPolicyList(ctx, table, actor, wanted)
		if err == nil && dryRun {
			err = errDryRun // rolls the transaction back
		}
		return err
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return Profile{}, false, fmt.Errorf("changing %s %s: %w", table.noun, wanted.Name, err)
	}
	return list, created, nil
}

// auditSettings returns the settings of a profile as the audit log shows them.
func (p Profile) auditSettings() settings {
	return settings{"limits", policiesAuditText(p.Limits), "metadata_only", strconv.FormatBool(p.MetadataOnly)}
}

// putPolicyList creates or replaces the list of policies with the name wanted.Name in table and records the event.
func (s session) putPolicyList(ctx context.Context, table policyTable, actor string, wanted Profile) (list Profile, created bool, err error) {
	name := wanted.Name
	list, err = s.readPolicyList(ctx, table, name, "FOR UPDATE")
	if err == nil && bytes.Equal(list.Limits, wanted.Limits) && list.MetadataOnly == wanted.MetadataOnly {
		return list, false, nil
	}
	changes := describeChanges(list.auditSettings(), wanted.auditSettings())
	if err != nil && !errors.Is(err, ErrNotFound) {
		return list, false, err
	}
	if _, err := s.exec(ctx, `
		INSERT INTO `+table.table+` (name, limits, version, created_at, updated_at) VALUES ($1, $2::json, 1, {now}, {now})
		ON CONFLICT (name) DO UPDATE SET limits = excluded.limits, version = `+table.table+`.version + 1, updated_at = excluded.updated_at`,
		name, jsonTextOrNull(wanted.Limits)); err != nil {
		return list, false, fmt.Errorf("writing the policies: %w", err)
	}
	if table.table == profileTable().table {
		if _, err := s.exec(ctx, `UPDATE profiles SET metadata_only = $2 WHERE name = $1`, name, wanted.MetadataOnly); err != nil {
			return list, false, fmt.Errorf("writing metadata_only: %w", err)
		}
		s.pendingNews.addPool(AllPools) // the devices with this profile may have tasks in any pool
	}
	if list, err = s.readPolicyList(ctx, table, name, ""); err != nil {
		return list, false, err
	}
	kind := table.changed
	if created = list.Version == 1; created {
		kind, changes = table.created, "limits="+policiesAuditText(wanted.Limits)
		if wanted.MetadataOnly {
			changes += " metadata_only=true"
		}
	}
	return list, created, s.recordEvent(ctx, Event{Kind: kind, Actor: actor, Detail: table.noun + "=" + name + " " + changes})
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
	defer wrapError(&err, "changing %s %s", table.noun, name)
	return s.write(ctx, func(tx session) error {
		// A transaction that gives the profile to a device first locks the row of the profile. So either the next statement waits for this
		// transaction, or the transaction finds the profile deleted.
		if _, err := tx.readPolicyList(ctx, table, name, "FOR UPDATE"); err != nil {
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

// lockProfile locks a profile against its deletion until the end of the transaction, or returns ErrUnknownProfile. If name is empty, it
// does nothing.
func (s session) lockProfile(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	_, err := s.readPolicyList(ctx, profileTable(), name, "FOR KEY SHARE OF p")
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %s", ErrUnknownProfile, name)
	}
	return err
}

// LimitSet is a named set of policies that callers ask directly, without a slot. One such request is called a take.
type LimitSet Profile

func limitSetTable() policyTable {
	return policyTable{"limit_sets", "limit_set", "FALSE", "limit_set.created", "limit_set.changed", "limit_set.deleted"}
}

// LimitSet returns one limit set, or ErrNotFound.
func (s profiles) LimitSet(ctx context.Context, name string) (LimitSet, error) {
	found, err := s.readSession().readPolicyList(ctx, limitSetTable(), name, "")
	return LimitSet(found), err
}

// LimitSets returns at most limit limit sets with a name > afterName, in the order of names.
func (s profiles) LimitSets(ctx context.Context, afterName string, limit int) ([]LimitSet, error) {
	found, err := s.readSession().readPolicyListPage(ctx, limitSetTable(), afterName, limit)
	sets := make([]LimitSet, len(found))
	for i, one := range found {
		sets[i] = LimitSet(one)
	}
	return sets, err
}

// PutLimitSet creates a limit set or replaces its policies, which must be valid. created is true if the limit set is new. If nothing
// changes, the version stays. If dryRun is true, PutLimitSet checks everything and changes nothing.
func (s profiles) PutLimitSet(ctx context.Context, actor, name string, policies json.RawMessage, dryRun bool) (set LimitSet, created bool, err error) {
	put, created, err := s.putPolicyList(ctx, limitSetTable(), actor, Profile{Name: name, Limits: policies}, dryRun)
	return LimitSet(put), created, err
}

// DeleteLimitSet deletes a limit set, or returns ErrNotFound.
func (s profiles) DeleteLimitSet(ctx context.Context, actor, name string) error {
	return s.deletePolicyList(ctx, limitSetTable(), actor, name, func(session) error { return nil })
}

// LimitSetVersion identifies one state of a limit set. It has CreatedAt, because the versions begin at 1 again if a limit set is deleted
// and created anew.
type LimitSetVersion struct {
	Name      string
	Version   int64
	CreatedAt time.Time
}

// LimitSetVersions returns the present versions of the limit sets whose names are in sets. It leaves out limit sets that do not exist.
func (s profiles) LimitSetVersions(ctx context.Context, sets []string) ([]LimitSetVersion, error) {
	return collect(ctx, s.readSession(), func(v *LimitSetVersion) []any { return []any{&v.Name, &v.Version, &v.CreatedAt} },
		`SELECT s.name, s.version, s.created_at FROM {names} JOIN limit_sets s ON s.name = names.name`, namesToJSONArray(sets))
}
