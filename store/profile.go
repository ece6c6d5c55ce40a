package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// profiles are the policies that devices share.
type profiles struct{ *connection }

// Profile is a set of policies that devices share.
type Profile struct {
	Name      string
	Limits    json.RawMessage // a JSON array of policies, valid; nil = none
	Version   int64           // increases with every change
	CreatedAt time.Time
	UpdatedAt time.Time
}

const profileColumns = `p.name, p.limits, p.version, p.created_at, p.updated_at`

func profileDest(p *Profile) []any {
	return []any{&p.Name, document{&p.Limits}, &p.Version, instant{&p.CreatedAt}, instant{&p.UpdatedAt}}
}

// Profile returns one profile; ErrNotFound.
func (s profiles) Profile(ctx context.Context, name string) (Profile, error) {
	return s.read().profiles().named(ctx, name, "")
}

func (s profilesIn) named(ctx context.Context, name, lock string) (Profile, error) {
	return one(ctx, s.session, profileDest, `SELECT `+profileColumns+` FROM profiles p WHERE p.name = $1 `+lock, name)
}

// Profiles returns up to limit profiles by name, those after the one named.
func (s profiles) Profiles(ctx context.Context, after string, limit int) ([]Profile, error) {
	return collect(ctx, s.read(), profileDest, `SELECT `+profileColumns+` FROM profiles p WHERE p.name > $1 ORDER BY p.name LIMIT $2`, after, limit)
}

// PutProfile creates a profile or replaces its policies, which must be valid.
// Without a change nothing is written and the version stays.
func (s profiles) PutProfile(ctx context.Context, actor, name string, limits json.RawMessage) (p Profile, created bool, err error) {
	err = s.write(ctx, func(tx session) error {
		p, err = tx.profiles().named(ctx, name, "{lock}")
		if err == nil && bytes.Equal(p.Limits, limits) {
			created = false
			return nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if _, err := tx.exec(ctx, `
			INSERT INTO profiles (name, limits, version, created_at, updated_at) VALUES ($1, $2{json}, 1, {now}, {now})
			ON CONFLICT (name) DO UPDATE SET limits = excluded.limits, version = profiles.version + 1, updated_at = excluded.updated_at`,
			name, nullText(limits)); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		if p, err = tx.profiles().named(ctx, name, ""); err != nil {
			return err
		}
		created = p.Version == 1
		kind := "profile.changed"
		if created {
			kind = "profile.created"
		}
		return tx.record(ctx, Event{Kind: kind, Actor: actor, Detail: "profile=" + name + " limits=" + limitsText(limits)})
	})
	if err != nil {
		return Profile{}, false, fmt.Errorf("profile %s: %w", name, err)
	}
	return p, created, nil
}

// DeleteProfile takes a profile away that no device has. ErrNotFound, ErrInUse.
func (s profiles) DeleteProfile(ctx context.Context, actor, name string) error {
	err := s.write(ctx, func(tx session) error {
		// A transaction that gives it to a device holds the row, or sees that it is gone.
		if _, err := tx.profiles().named(ctx, name, "{lock}"); err != nil {
			return err
		}
		used, err := one(ctx, tx, only[bool], `SELECT EXISTS (SELECT 1 FROM devices WHERE profile = $1)`, name)
		if err != nil {
			return err
		}
		if used {
			return ErrInUse
		}
		if _, err := tx.exec(ctx, `DELETE FROM profiles WHERE name = $1`, name); err != nil {
			return err
		}
		return tx.record(ctx, Event{Kind: "profile.deleted", Actor: actor, Detail: "profile=" + name})
	})
	if err != nil {
		return fmt.Errorf("profile %s: %w", name, err)
	}
	return nil
}

// hold keeps a profile from being deleted until the end of the
// transaction; an empty name is none. ErrUnknownProfile.
func (s profilesIn) hold(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	_, err := s.named(ctx, name, "{share p}")
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %s", ErrUnknownProfile, name)
	}
	return err
}
