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

// policyTable names a table that stores lists of policies, and the kinds of its events. In this file a list is a Profile or a LimitSet.
type policyTable struct {
	table, noun               string
	created, changed, deleted string // kinds of events
}

func profileTable() policyTable {
	return policyTable{"profiles", "profile", "profile.created", "profile.changed", "profile.deleted"}
}

const profileColumns = `p.name, p.limits, p.version, p.created_at, p.updated_at`

func profileDest(p *Profile) []any {
	return []any{&p.Name, document{&p.Limits}, &p.Version, instant{&p.CreatedAt}, instant{&p.UpdatedAt}}
}

// Profile returns one profile, or ErrNotFound.
func (s profiles) Profile(ctx context.Context, name string) (Profile, error) {
	return s.readSession().profiles().readPolicyList(ctx, profileTable(), name, "")
}

func (s profilesIn) readPolicyList(ctx context.Context, in policyTable, name, lock string) (Profile, error) {
	return queryOne(ctx, s.session, profileDest, `SELECT `+profileColumns+` FROM `+in.table+` p WHERE p.name = $1 `+lock, name)
}

// Profiles returns at most limit profiles with a name > after, in the order of names.
func (s profiles) Profiles(ctx context.Context, after string, limit int) ([]Profile, error) {
	return s.readSession().profiles().readPolicyListPage(ctx, profileTable(), after, limit)
}

func (s profilesIn) readPolicyListPage(ctx context.Context, in policyTable, after string, limit int) ([]Profile, error) {
	return collect(ctx, s.session, profileDest, `SELECT `+profileColumns+` FROM `+in.table+` p WHERE p.name > $1 ORDER BY p.name LIMIT $2`, after, limit)
}

// PutProfile creates a profile or replaces its policies, which must be valid. If nothing changes, nothing is written and the version stays.
func (s profiles) PutProfile(ctx context.Context, actor, name string, limits json.RawMessage) (p Profile, created bool, err error) {
	return s.putPolicyList(ctx, profileTable(), actor, name, limits, false)
}

func (s profiles) putPolicyList(ctx context.Context, in policyTable, actor, name string, limits json.RawMessage, dryRun bool) (p Profile, created bool, err error) {
	err = s.write(ctx, func(tx session) error {
		p, created, err = tx.profiles().putPolicyList(ctx, in, actor, name, limits)
		if err == nil && dryRun {
			err = errDryRun // rolls the transaction back
		}
		return err
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return Profile{}, false, fmt.Errorf("changing %s %s: %w", in.noun, name, err)
	}
	return p, created, nil
}

func (s profilesIn) putPolicyList(ctx context.Context, in policyTable, actor, name string, limits json.RawMessage) (p Profile, created bool, err error) {
	p, err = s.readPolicyList(ctx, in, name, "{lock}")
	if err == nil && bytes.Equal(p.Limits, limits) {
		return p, false, nil
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return p, false, err
	}
	if _, err := s.exec(ctx, `
		INSERT INTO `+in.table+` (name, limits, version, created_at, updated_at) VALUES ($1, $2{json}, 1, {now}, {now})
		ON CONFLICT (name) DO UPDATE SET limits = excluded.limits, version = `+in.table+`.version + 1, updated_at = excluded.updated_at`,
		name, nullText(limits)); err != nil {
		return p, false, fmt.Errorf("writing the policies: %w", err)
	}
	if p, err = s.readPolicyList(ctx, in, name, ""); err != nil {
		return p, false, err
	}
	kind := in.changed
	if created = p.Version == 1; created {
		kind = in.created
	}
	return p, created, s.recordEvent(ctx, Event{Kind: kind, Actor: actor, Detail: in.noun + "=" + name + " limits=" + limitsText(limits)})
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

// deletePolicyList deletes a list unless check returns an error.
func (s profiles) deletePolicyList(ctx context.Context, in policyTable, actor, name string, check func(session) error) error {
	err := s.write(ctx, func(tx session) error {
		// A transaction that gives the profile to a device locks the row of the profile first. So it either blocks this lock, or finds the
		// profile deleted.
		if _, err := tx.profiles().readPolicyList(ctx, in, name, "{lock}"); err != nil {
			return err
		}
		if err := check(tx); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `DELETE FROM `+in.table+` WHERE name = $1`, name); err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: in.deleted, Actor: actor, Detail: in.noun + "=" + name})
	})
	if err != nil {
		return fmt.Errorf("changing %s %s: %w", in.noun, name, err)
	}
	return nil
}

// lockProfile keeps a profile from being deleted until the end of the transaction, or returns ErrUnknownProfile. An empty name means no
// profile.
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
